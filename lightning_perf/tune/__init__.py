"""Trials of levers on the user's own module and data within a time budget. Levers that measure faster are kept."""
