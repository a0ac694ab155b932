"""Scenarios: runs of a freshly built contract under a policy, each leaving traces and measurements."""
