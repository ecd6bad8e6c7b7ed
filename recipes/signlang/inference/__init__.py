"""Build variants of a trained network, and classify pictures with them."""
