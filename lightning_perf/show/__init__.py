"""Documents as blocks, and the blocks as text: on the console and as Markdown."""
