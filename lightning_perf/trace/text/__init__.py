"""The text of a trace file: its bytes, cut into pieces of whole events, decoded, and repaired where it is damaged."""
