"""A generator of reasoning-gym through verifiers' own adapter; the whole reply is the answer."""

import verifiers as vf
from verifiers.envs.integrations.reasoninggym_env import ReasoningGymEnv


def load_environment(
    gym: str = "chain_sum", config: dict | None = None, count: int = 100, held_out: int = 3, seed: int = 0
):
    return ReasoningGymEnv(
        gym=[{"name": gym, "weight": 1.0, "config": config or {}}],
        num_train_examples=count,
        num_eval_examples=held_out,
        system_prompt="Answer.",
        parser=vf.Parser(),
        seed=seed,
    )
