"""Worlds made by bubblewrap."""
