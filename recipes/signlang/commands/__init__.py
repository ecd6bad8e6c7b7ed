"""The subcommands of ``python -m recipes.signlang``, one module each."""
