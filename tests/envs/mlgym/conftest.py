"""Sandboxes that are quick to start."""

from support.few_libraries import few_libraries

__all__ = ["few_libraries"]
