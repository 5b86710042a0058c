"""`python -m sinkstream.cli`, the same as `python -m sinkstream`."""

from __future__ import annotations

import sys

from sinkstream.cli import main

sys.exit(main())
