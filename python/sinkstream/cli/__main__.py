"""`python -m sinkstream.cli`, for environments whose scripts are not on PATH."""

from __future__ import annotations

import sys

from sinkstream.cli import main

sys.exit(main())
