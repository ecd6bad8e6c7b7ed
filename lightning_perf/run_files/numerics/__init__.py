"""Files on the precision of a run: its settings, loss scale, gradients, forecast of formats, FP8 scales and drift."""
