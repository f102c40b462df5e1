"""The version of this distribution."""

__version__ = "0.1.0"


def versions() -> str:
    """Of air, Python and torch, from what is installed: to import torch would take seconds."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    try:
        torch = f"torch {version('torch')}"
    except PackageNotFoundError:
        torch = "no torch"
    return f"air {__version__} (Python {platform.python_version()}, {torch})"
