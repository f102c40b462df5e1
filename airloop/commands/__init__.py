"""Commands with many options, each in a file of its own: parse, call, print."""
