"""The matrix of ``ci/matrix.toml``: read and checked, expanded for an event, shown."""
