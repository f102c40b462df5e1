"""The program through which the host enters a sandbox, and who speaks with it."""
