"""A run's weights for other programs: an adapter for PEFT, a whole model for transformers, a GGUF for llama.cpp."""

from airloop.export.exporting import export, format_report

__all__ = ["export", "format_report"]
