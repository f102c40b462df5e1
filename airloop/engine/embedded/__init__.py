"""The embedded engine: continuous batching on the trainer's own module, keys and values in pages."""

from airloop.engine.embedded.engine import EmbeddedEngine

__all__ = ["EmbeddedEngine"]
