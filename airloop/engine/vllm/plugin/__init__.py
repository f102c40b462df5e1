"""A plugin for vLLM servers. It runs in vLLM's environment, where airloop is not installed: it imports only Python's
standard library and vLLM."""
