"""The container that cibuildwheel builds Linux wheels in, and the engine that runs it."""
