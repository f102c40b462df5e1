"""Intervals and exact tests: what may be called a difference, and from how many tasks on.

Everything that decides whether a difference is real is here, and one rule is used everywhere: values are of tasks (a
task's episodes are no independent witnesses), differences are paired, fewer than FEWEST tasks decide nothing, and of
differences that are none at most one in twenty is called one. tests/stats/ shows by simulation that this is so.
"""
