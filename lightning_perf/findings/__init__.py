"""Rules by topic, which turn analyses into findings, and the check of findings against the whole run."""
