"""Run the recipe as ``python -m recipes.tinylm``."""

from __future__ import annotations

import sys

from recipes.tinylm.cli import main

if __name__ == "__main__":
    sys.exit(main())
