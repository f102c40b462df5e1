"""Environments of ours in the hands of others: packages that verifiers and prime-rl load, and what these import."""
