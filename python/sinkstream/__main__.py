"""`python -m sinkstream`, for environments whose scripts are not on PATH."""

from __future__ import annotations

import sys

from sinkstream.cli import main

if __name__ == "__main__":
    sys.exit(main())
