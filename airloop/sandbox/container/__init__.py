"""Sandboxes made by Docker or Podman."""
