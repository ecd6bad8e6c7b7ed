"""The account of a fit: every second from the start of ``Trainer.fit`` to its end belongs to one entry."""
