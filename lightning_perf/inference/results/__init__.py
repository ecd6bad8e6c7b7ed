"""The trade-off document, its recommendation, its plot and its blocks."""
