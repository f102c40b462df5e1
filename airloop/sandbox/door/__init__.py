"""The program through which the host enters a world, and who speaks with it."""
