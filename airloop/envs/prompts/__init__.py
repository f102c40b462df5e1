"""Rows of a data set and reward functions, as TRL's trainers take them: no code but the functions."""

from airloop.envs.prompts.env import PromptsArgs, PromptsEnv

__all__ = ["PromptsArgs", "PromptsEnv"]
