"""The environments of a config, by their names in it. `air compare` needs them, and nothing of what plays in them."""

from __future__ import annotations

from airloop.config import Config
from airloop.envs.base import Environment, load_environment
from airloop.errors import AirError


def load_environments(config: Config) -> dict[str, Environment]:
    envs: dict[str, Environment] = {}
    for entry in config.orchestrator.env:
        name = entry.title
        if name in envs:
            raise AirError(
                f"Two environments are called {name!r}.", f'give one of them another name: name = "{name}-2".'
            )
        envs[name] = load_environment(entry.id, entry.args)
        workers = config.orchestrator.workers_per_env
        if workers and "workers" not in entry.args:
            if "workers" not in type(envs[name]).Args.model_fields:
                raise AirError(
                    f"orchestrator.workers_per_env = {workers}, but {entry.id!r} has no worker processes.",
                    "delete the line; how many episodes run at once is orchestrator.max_concurrent.",
                )
            envs[name] = load_environment(entry.id, {**entry.args, "workers": workers})
        envs[name].weigh(envs[name].reward_weights if entry.rewards is None else entry.rewards)
    return envs
