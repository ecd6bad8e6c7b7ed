"""Render a data set of hands, so that the recipe runs without a download."""
