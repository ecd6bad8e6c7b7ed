"""Run the recipe as ``python -m recipes.signlang``."""

from __future__ import annotations

import sys

from recipes.signlang.cli import main

if __name__ == "__main__":
    sys.exit(main())
