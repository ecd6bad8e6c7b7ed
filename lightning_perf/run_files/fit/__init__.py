"""Files on a whole fit: where its time went, its compilations, and its memory."""
