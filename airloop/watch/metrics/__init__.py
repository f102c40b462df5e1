"""Metrics: their names, how they are counted, their tables."""
