"""What a release and a nightly decide: which version it is, whether it is due, and what its notes say."""
