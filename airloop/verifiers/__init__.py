"""Unmodified environments of the library `verifiers`: each runs in a process that has that library, which the trainer's
process never imports."""
