"""The one error of this package."""


class ContainerError(Exception):
    """Why there is no container to build in, in one sentence."""
