"""How much is tried: `make papers` sets PAPERS=all, which takes minutes more."""

from __future__ import annotations

import os

IS_WHOLE = os.environ.get("PAPERS") == "all"
DRAWN = 1000 if IS_WHOLE else 250  # random graphs
