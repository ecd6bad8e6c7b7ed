"""Bounded trials of levers on the user's own module and data: keep what measures faster."""
