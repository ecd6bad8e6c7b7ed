"""How good the estimates of findings are: each one is stored next to the gain that was measured later."""
