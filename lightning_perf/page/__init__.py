"""The page: one set of assets, shown by TensorBoard's tab and in a self-contained HTML file."""
