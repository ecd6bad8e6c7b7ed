"""Runs the recorded operators of a training again, and estimates the effect of other settings on its step time.

Nothing here touches the training: all measuring is done in a worker process.
"""
