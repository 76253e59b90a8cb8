"""FlashAttention-2: exact attention for PyTorch, in one wheel a platform."""

__version__ = "2.9.0"
