"""Render a dataset of hands, so that the recipe runs without a download."""
