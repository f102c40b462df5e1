"""Grade-school word problems with one number as the answer: the control experiment for everything else."""

from airloop.envs.gsm8k.env import Gsm8kCalculatorEnv, Gsm8kEnv

__all__ = ["Gsm8kCalculatorEnv", "Gsm8kEnv"]
