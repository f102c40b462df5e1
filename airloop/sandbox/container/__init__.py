"""Worlds made by Docker or Podman."""
