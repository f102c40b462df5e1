"""A research task in miniature: tune a model on a real table, within a few commands. See env.py."""

from airloop.envs.tune.env import TuneEnv

__all__ = ["TuneEnv"]
