"""The definition of a package's environment: the main content of a package that `air env package` has written."""

from __future__ import annotations

import atexit
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airloop.envs.base import Environment, find_environment, load_environment
from airloop.envs.paths import anchored_args
from airloop.own_code import anchored, is_file_id

# Of this process, by their arguments: sandboxes and data sets are shared by all episodes.
_made: dict[str, Environment] = {}


@dataclass(frozen=True)
class Definition:
    """The environment `id`, with arguments and weights that may be changed when it is loaded. Paths in it are relative
    to `folder`, the package's own.

        Definition("tune", Path(__file__).parent, args={"max_turns": 12})
    """

    id: str
    folder: Path
    args: Mapping[str, Any] = field(default_factory=dict)
    rewards: Mapping[str, float] = field(default_factory=dict)

    def environment(
        self, args: Mapping[str, Any] | None = None, rewards: Mapping[str, float] | None = None
    ) -> Environment:
        """For the same arguments the same one. AirError for an argument or a component that it does not know. Paths
        that are given here are relative to the working directory."""
        key = json.dumps([self.id, str(self.folder), args or {}, rewards or {}], sort_keys=True, default=str)
        if key not in _made:
            _made[key] = self._make(args or {}, rewards or {})
        return _made[key]

    def _make(self, args: Mapping[str, Any], rewards: Mapping[str, float]) -> Environment:
        env_id = anchored(self.id, [self.folder]) if is_file_id(self.id) else self.id
        known = find_environment(env_id)().Args
        own, given = anchored_args(self.args, known, [self.folder]), anchored_args(args, known, [Path.cwd()])
        env = load_environment(env_id, {**own, **given})
        env.weigh(rewards or self.rewards or env.reward_weights)
        return env


def forget_environment(env: Environment) -> None:
    """Drops an environment that is about to be closed from the cache: the next call makes another."""
    for key in [key for key, made in _made.items() if made is env]:
        del _made[key]


@atexit.register
def _abandon_all() -> None:
    """Ends environments that were not closed: sandboxes and workers must not outlive the process."""
    while _made:
        _made.popitem()[1].abandon()
