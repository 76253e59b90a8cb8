"""Layers that go with attention."""
