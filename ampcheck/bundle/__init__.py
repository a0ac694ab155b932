"""Evidence bundles: what is kept of a step that went wrong, in a file that is loaded without executing anything.

`keeper` watches the natural run and holds on to what is needed, `making` decides and writes, `file` reads and refuses, and
`replaying` runs the call again from it.
"""
