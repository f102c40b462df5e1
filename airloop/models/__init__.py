"""Find, check and load a model: `load(name)` gives the model, its tokenizer, and what the user should know.

A name is a directory, a GGUF file, a hub id, or `tiny:llama` (random weights, for tests). Everything that
can be refused is refused from the small files, before the large ones are read; see checks.py.
"""
