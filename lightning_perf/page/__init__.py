"""The page: one set of assets for TensorBoard's tab and for self-contained HTML files."""
