"""The architectures we run with our own forward pass, by name: see blocks.py, which needs torch."""

KNOWN = ("llama", "mistral", "qwen2", "qwen3")
# Angles that depend on a position alone, not on the length of the whole sequence.
ROTARY = ("default", "linear", "llama3", "yarn")
