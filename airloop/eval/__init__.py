"""Agents on held-out tasks: evaluation, comparison, baselines, the audit of an environment."""
