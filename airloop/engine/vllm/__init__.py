"""Sampling by servers of vLLM."""
