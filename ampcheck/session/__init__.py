"""A pytest session that judges contracts: what is collected, when it is judged, and what is made of the results.

The hooks in `ampcheck.plugin` lead here; nothing of this is imported unless a session asks for `--ampcheck`.
"""
