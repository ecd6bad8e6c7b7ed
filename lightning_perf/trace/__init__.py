"""Turns a trace file into a `Trace`: the reader, the columns, step windows and launch-to-device links."""
