"""Harnesses that air adds to those of verifiers: its worker finds them by their names."""
