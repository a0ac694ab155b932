"""`python -m ampcheck` is the `ampcheck` command."""

from __future__ import annotations

import sys

from ampcheck.cli import main

sys.exit(main())
