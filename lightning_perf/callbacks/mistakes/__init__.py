"""Finds mistakes in the use of 16-bit precision during the first steps of a fit, each with its place and its fix."""
