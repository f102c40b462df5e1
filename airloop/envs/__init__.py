"""Environments: where agents work and are scored. See base.py for the contract."""
