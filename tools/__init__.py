"""What a person or a pipeline runs on finished wheels: ``python -m tools``."""
