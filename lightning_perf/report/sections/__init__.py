"""The blocks of reports, a module per topic."""
