"""Under what conditions an evaluation was made: everything but the agent that can move a score.

Two evaluations are compared only if these are equal (E6). What does not exist for an agent is None and equals
anything: a script samples nothing, a model behind a URL has no transcript of ours.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airloop.config import Config
from airloop.envs.base import Environment
from airloop.text.nested import flatten

FLAGS = {
    "sampling.temperature": "--temperature",
    "mode.context": "--seq_len",
    "mode.strategy": "--orchestrator.trajectory_strategy",
    "mode.parser": "--inference.model.tool_call_parser",
    "mode.episode_timeout_s": "--orchestrator.episode_timeout_s",
}
# How fast the machine answers, not what is asked of the agent.
NOT_CONDITIONS = {"workers"}


@dataclass(frozen=True)
class Conditions:
    sampling: Mapping[str, Any] | None
    mode: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        return {"sampling": self.sampling and dict(self.sampling), "mode": dict(self.mode)}


@dataclass(frozen=True)
class Difference:
    what: str  # a dotted name: "sampling.temperature"
    a: Any
    b: Any

    def __str__(self) -> str:
        return f"{self.what} is {_shown(self.a)} in A and {_shown(self.b)} in B"


def conditions(
    config: Config, envs: Mapping[str, Environment], temperature: float, *, samples: bool, policy: bool
) -> Conditions:
    """`samples`: the agent is a model. `policy`: it is sampled here, from tokens."""
    o = config.orchestrator
    sampling = {**o.sampling.model_dump(), "temperature": temperature} if samples else None
    mode = {
        "env": {e.title: _env(e.id, envs[e.title]) for e in o.env},
        "parser": config.inference.model.tool_call_parser,
        "episode_timeout_s": o.episode_timeout_s,
        "context": config.seq_len if policy else None,
        "strategy": o.trajectory_strategy if policy else None,
    }
    # through JSON, so that what was saved and what was just made are equal
    made: dict[str, Any] = json.loads(json.dumps({"sampling": sampling, "mode": mode}, sort_keys=True))
    return Conditions(**made)


def _env(env_id: str, env: Environment) -> dict[str, Any]:
    args = {k: v for k, v in env.args.model_dump(mode="json").items() if k not in NOT_CONDITIONS}
    return {
        "id": env_id,
        "args": args,
        "action_format": env.action_format,
        "max_turns": env.max_turns,
        "rewards": dict(env.reward_weights),
    }


def differences(a: Conditions, b: Conditions, excused: Callable[[str], bool] = lambda what: False) -> list[Difference]:
    """`excused`: names of what may differ, as it has no part in what is compared."""
    one, two = flatten(a.as_json(), "."), flatten(b.as_json(), ".")
    if a.sampling is None or b.sampling is None:
        one, two = ({k: v for k, v in side.items() if k.split(".")[0] != "sampling"} for side in (one, two))
    found = [Difference(name, one.get(name), two.get(name)) for name in sorted({*one, *two})]
    both_may_be_none = {"mode.context", "mode.strategy"}
    differ = [d for d in found if d.a != d.b and not (d.what in both_may_be_none and None in (d.a, d.b))]
    return [d for d in differ if not excused(d.what)]


def flags_for(found: list[Difference], conditions: Conditions) -> str:
    """What to add to `air eval` to get A's conditions; settings that follow from others are left out."""
    words = []
    for difference in found:
        flag = flag_of(difference.what, list(conditions.mode["env"]))
        if flag and difference.a is not None:
            value = difference.a if isinstance(difference.a, str) else json.dumps(difference.a)
            words.append(f"{flag} {shlex.quote(value)}")
    return " ".join(words)


def flag_of(what: str, names: Sequence[str]) -> str:
    """By which a condition is set; empty where it follows from others. `names`: of the environments, in order."""
    flag = FLAGS.get(what, "")
    section, _, rest = what.partition(".")
    if section == "sampling" and not flag:
        flag = f"--orchestrator.{what}"
    for i, name in enumerate(names):
        own = rest.removeprefix(f"env.{name}.")
        if own != rest and own.startswith(("args.", "rewards.")):
            flag = f"--orchestrator.env.{i}.{own}"
    return flag


def _shown(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)
