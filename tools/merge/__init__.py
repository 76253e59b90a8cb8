"""Joins shards, each the kernels of one architecture, to the kernels' folder that a wheel carries."""
