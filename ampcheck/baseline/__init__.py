"""The baseline gate: what a contract did when it was last agreed on, and what has changed since. No torch.

`fingerprint` says what a contract does in a few facts, `file` keeps them, `compare` tells two of them apart.
"""
