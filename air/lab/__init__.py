"""Comparing and reporting honestly."""
