"""What pipelines use, and a person with ``nox -s cibuildwheel``: cibuildwheel's hooks and its container."""
