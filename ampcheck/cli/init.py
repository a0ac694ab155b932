"""`ampcheck init`: write a contract for the project in the current directory."""

from __future__ import annotations

import argparse

EXAMPLE = """example:
  ampcheck init"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""


def main(options: argparse.Namespace) -> int:
    """Write it."""
    return 0
