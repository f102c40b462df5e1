"""What is shown inside a sandbox, read-only: programs run by the sandbox's own Python, with its standard library."""
