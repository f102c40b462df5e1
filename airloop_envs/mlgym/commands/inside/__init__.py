"""What is shown inside a world, read-only: programs run by the world's own Python, with its standard library."""
