"""The trade-off table, its recommendation, its plot and its renderers."""
