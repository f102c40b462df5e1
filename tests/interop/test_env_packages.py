"""Environments of ours as packages of verifiers: the same task, the same agent, the same reward in air, v0 and v1."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.interop_world import PROGRAMS, interpreter
from support.packaged_world import Golden, ask, in_environment, play_here, play_there
from support.standin import StandIn, serving

from airloop.types import Message

pytestmark = pytest.mark.interop

GOLDENS = {
    golden.env_id: golden
    for golden in (
        Golden("arith", {}, each=3),
        Golden("gsm8k", {}, each=2),
        Golden("gsm8k-calculator", {"max_turns": 6}, each=2),
        Golden("tune", {"workers": 1}),
        Golden("soup", {"max_turns": 6}, split="test"),
        Golden("mlgym", {"task_configs": ["prisonersDilemma.yaml"], "prompt": "short", "standby": 1}, split="train"),
    )
}
WAYS = (("package-v0", "v0"), ("package-v0", "v1"), ("package-v1", "v1"))

# {eval}: the command of this interface, which 0.3.1 and 0.4 call by different names.
V0_EVAL = "vf-eval air-arith -m scripted -b {url} -k STANDIN_KEY -n 4 -r 1 -c 1 -s -a {args}"
V1_EVAL = (
    "{eval} air-arith -m scripted --client.base-url {url} --client.api-key-var STANDIN_KEY -n 4 -c 1 --no-push "
    "--no-rich --env.taskset.split test"
)
COMMANDS = (("package-v0", V0_EVAL), ("package-v0", V1_EVAL), ("package-v1", V1_EVAL))

LOOK = """
import air_mlgym, verifiers.v1 as vf
print(sorted(air_mlgym.__all__), air_mlgym.__file__)
try:
    vf.resolve_env_config({"taskset": {"id": "air-mlgym"}, "agent": {"runtime": {"type": "docker"}}})
except ValueError as error:
    print(error)
"""


@cache
def played_here(env_id: str) -> list[Any]:
    return play_here(GOLDENS[env_id])


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The package of an environment, as the command writes it; once each."""

    @cache
    def package(env_id: str) -> Path:
        out = tmp_path_factory.mktemp("packages") / "out"
        words = ["env", "package", env_id, "--out", str(out)]
        subprocess.run([sys.executable, "-m", "airloop", *words], check=True, capture_output=True)
        return out

    return package


@pytest.mark.parametrize(("library", "how"), WAYS)
@pytest.mark.parametrize("env_id", GOLDENS)
def test_the_same_reward_everywhere(packages: Any, env_id: str, library: str, how: str) -> None:
    interpreter(library)
    golden, here = GOLDENS[env_id], played_here(env_id)
    there, model = play_there(golden, packages(env_id), library, how)
    assert [(one["id"], one["split"], one["error"]) for one in there] == [(t.task.id, golden.split, None) for t in here]
    assert [one["reward"] for one in there] == pytest.approx([t.reward for t in here], abs=1e-9)
    oracle, noop = there[0], there[-1]
    assert oracle["reward"] > noop["reward"], "the scripts earn alike: nothing is shown"
    for one, t in zip(there, here, strict=True):
        seconds = {name for name in t.metrics if "seconds" in name}
        expected = {name: value for name, value in t.metrics.items() if name not in seconds}
        found = {name: one["metrics"].get(f"{name}_measured", one["metrics"][name]) for name in expected}
        assert found == pytest.approx(expected, abs=1e-9)
    if here[0].tools:
        check_calls(model.asked)


def check_calls(asked: list[dict[str, Any]]) -> None:
    """Tools are offered as OpenAI's interface has them, and results answer calls by their ids."""
    assert asked[0]["tools"][0]["type"] == "function"
    later = next(body for body in asked if any(m["role"] == "tool" for m in body["messages"]))
    calls = [call["id"] for message in later["messages"] for call in message.get("tool_calls") or ()]
    answers = [message["tool_call_id"] for message in later["messages"] if message["role"] == "tool"]
    assert calls and answers == calls


class Says:
    """One text after another."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message:
        return Message(role="assistant", content=self.texts.pop(0))


@pytest.mark.parametrize(("library", "how"), WAYS)
def test_trouble_is_no_reward_and_what_is_past_may_be_shortened(packages: Any, library: str, how: str) -> None:
    interpreter(library)
    model = StandIn([Says("1", "lose it"), Says("2", "3", "stop"), Says("4", "5", "6")], tools=False)
    package = packages(f"{PROGRAMS / 'trouble_env.py'}:TroubleEnv")
    lost, stopped, whole = ask(model, package, library, how, {"id": "air-trouble-env", "split": "test", "n": 3})
    kind = "InfraError" if how == "v0" else "SandboxError"
    assert lost["error"].startswith(f"{kind}: the sandbox is gone") and lost["reward"] == 0.0
    assert (stopped["error"], stopped["reward"], stopped["metrics"]["words"]) == (None, 5.0, 3.0)
    assert (whole["error"], whole["reward"], whole["id"]) == (None, 15.0, "test-2")
    shown = [m["content"] for m in model.asked[-1]["messages"]]
    assert shown == ["You count.", "test-2", "5", "heard 5"]


@pytest.mark.parametrize(("library", "how"), WAYS)
def test_an_episode_that_verifiers_stops_is_scored_on_what_it_has(packages: Any, library: str, how: str) -> None:
    interpreter(library)
    model = StandIn([Says("1", "2", "never")], tools=False)
    package = packages(f"{PROGRAMS / 'trouble_env.py'}:TroubleEnv")
    asked = {"id": "air-trouble-env", "split": "test", "n": 1, "most": 2}
    (cut,) = ask(model, package, library, how, asked)
    assert (cut["error"], cut["reward"], cut["metrics"]["words"]) == (None, 3.0, 2.0)


@pytest.mark.parametrize(("library", "how"), WAYS)
def test_groups_are_compared_where_they_are_scored_together(packages: Any, library: str, how: str) -> None:
    interpreter(library)
    model = StandIn([Says("1"), Says("3")], tools=False)
    asked = {"id": "air-trouble-env", "split": "eval", "n": 1, "rollouts": 2}
    there = ask(model, packages(f"{PROGRAMS / 'trouble_env.py'}:RankEnv"), library, how, asked)
    if how == "v0":
        assert sorted(one["reward"] for one in there) == [0.5, 1.5 + 2.0]
        assert sorted(one["metrics"]["best"] for one in there) == [0.0, 1.0]
    else:
        assert "The reward component 'best' compares the episodes of a group" in there[0]["error"]


@pytest.mark.parametrize("library", ["package-v0", "package-v1"])
def test_a_server_of_environments_as_prime_rl_has_one(packages: Any, library: str) -> None:
    """Its orchestrator loads the tasks, and sends each row to a server that has the environment."""
    golden = GOLDENS["gsm8k-calculator"]
    there, model = play_there(golden, packages(golden.env_id), library, "server")
    assert [one["reward"] for one in there] == pytest.approx([t.reward for t in played_here(golden.env_id)])
    assert all(one["error"] is None for one in there)
    check_calls(model.asked)


@pytest.mark.parametrize(("library", "command"), COMMANDS, ids=["v0-of-0.3.1", "v1-of-0.3.1", "v1-of-0.4.0"])
def test_the_commands_of_verifiers(packages: Any, library: str, command: str, tmp_path: Path) -> None:
    interpreter(library)
    golden = Golden("arith", {}, each=2, split="test")
    env = golden.environment()
    model = StandIn(golden.agents(env), tools=False)
    with serving(model) as url:
        named = {
            "{url}": url,
            "{eval}": "eval" if library == "package-v0" else "vf-eval",
            "{args}": '{"eval_split": "test"}',
        }
        words = [named.get(word, word) for word in command.split()]
        in_environment(library, packages("arith"), words, cwd=tmp_path)
    assert rewards_in(tmp_path) == [1.0, 1.0, 0.0, 0.0]


def rewards_in(folder: Path) -> list[float]:
    """What a command has left on the disk: rows of v0, episodes or traces of v1."""
    files = [f for f in folder.rglob("*.jsonl") if f.name in ("results.jsonl", "traces.jsonl")]
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    found = []
    for row in rows:
        for trace in row.get("traces", [row]):
            weighed = [r["score"] * r["weight"] for r in trace.get("rewards", {}).values()]
            found.append(trace["reward"] if "reward" in trace else sum(weighed))
    return found


def test_a_written_package_installs(packages: Any, tmp_path: Path) -> None:
    """Its wheel has everything: by pip alone, into a folder of its own. A container of verifiers' is refused."""
    python = interpreter("package-v1")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*pip, str(tmp_path / "site"), str(packages("mlgym"))], check=True, capture_output=True)
    (tmp_path / "look.py").write_text(LOOK)
    said = in_environment("package-v1", tmp_path / "site", [str(tmp_path / "look.py")])
    assert "['Env', 'Harness', 'Taskset']" in said and str(tmp_path / "site") in said
    assert 'write env.agent.runtime.type = "subprocess"' in said
