"""The folder and the record of a run: its facts, fingerprint and device health."""
