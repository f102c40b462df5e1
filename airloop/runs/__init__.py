"""The directory of a run: written, read, resumed, and read when damaged."""
