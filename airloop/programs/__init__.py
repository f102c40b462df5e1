"""Agents that are programs: a function or a command, in processes of their own."""
