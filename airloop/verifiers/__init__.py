"""Environments of the library `verifiers`, as they are: each in a process that has that library, which this one never
imports."""
