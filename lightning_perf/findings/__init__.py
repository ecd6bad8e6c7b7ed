"""Rules: each module has one, and turns the analyses of a rank into a `Finding` or nothing."""
