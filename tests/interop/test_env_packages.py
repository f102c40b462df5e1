"""Environments of ours as packages of verifiers: the same task, the same agent, the same reward in air, v0 and v1."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.interop_world import interpreter
from support.packaged_world import Golden, in_environment, play_here, play_there
from support.standin import StandIn, serving

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


@cache
def played_here(env_id: str) -> list[Any]:
    return play_here(GOLDENS[env_id])


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The package of an environment, as the command writes it; once each."""

    @cache
    def package(env_id: str) -> Path:
        out = tmp_path_factory.mktemp("packages") / f"air-{env_id}"
        words = ["env", "package", env_id, "--out", str(out)]
        subprocess.run([sys.executable, "-m", "airloop", *words], check=True, capture_output=True)
        return out

    return package


@pytest.mark.parametrize(("library", "how"), WAYS)
@pytest.mark.parametrize("env_id", GOLDENS)
def test_the_same_reward_everywhere(packages: Any, env_id: str, library: str, how: str) -> None:
    interpreter(library)
    golden, here = GOLDENS[env_id], played_here(env_id)
    there, _ = play_there(golden, packages(env_id), library, how)
    assert [(one["id"], one["split"], one["error"]) for one in there] == [(t.task.id, golden.split, None) for t in here]
    assert [one["reward"] for one in there] == pytest.approx([t.reward for t in here], abs=1e-9)
    oracle, noop = there[0], there[-1]
    assert oracle["reward"] > noop["reward"], "the scripts earn alike: nothing is shown"
    for one, t in zip(there, here, strict=True):
        seconds = {name for name in t.metrics if "seconds" in name}
        expected = {name: value for name, value in t.metrics.items() if name not in seconds}
        assert {name: one["metrics"][name] for name in expected} == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("library", ["package-v0", "package-v1"])
def test_a_server_of_environments_as_prime_rl_has_one(packages: Any, library: str) -> None:
    """Its orchestrator loads the tasks, and sends each row to a server that has the environment."""
    golden = GOLDENS["gsm8k-calculator"]
    there, model = play_there(golden, packages(golden.env_id), library, "server")
    assert [one["reward"] for one in there] == pytest.approx([t.reward for t in played_here(golden.env_id)])
    assert all(one["error"] is None for one in there)
    first = model.asked[0]
    assert first["tools"] and first["tools"][0]["type"] == "function"


def test_tool_calls_come_back_by_their_ids(packages: Any) -> None:
    golden = GOLDENS["gsm8k-calculator"]
    for library, how in WAYS:
        interpreter(library)
        _, model = play_there(golden, packages(golden.env_id), library, how)
        later = next(body for body in model.asked if any(m["role"] == "tool" for m in body["messages"]))
        calls = [c["id"] for m in later["messages"] for c in m.get("tool_calls") or ()]
        answers = [m["tool_call_id"] for m in later["messages"] if m["role"] == "tool"]
        assert calls and answers == calls, (library, how)


@pytest.mark.parametrize(
    ("library", "command"),
    [
        ("package-v0", ["vf-eval", "{id}", "-m", "scripted", "-b", "{url}", "-k", "STANDIN_KEY", "-n", "{n}", "-r", "1",
                        "-c", "1", "-s", "-a", '{{"eval_split": "test"}}']),
        ("package-v0", ["eval", "{id}", "-m", "scripted", "--client.base-url", "{url}", "--client.api-key-var",
                        "STANDIN_KEY", "-n", "{n}", "-c", "1", "--no-push", "--no-rich", "--env.taskset.split", "test"]),
        ("package-v1", ["vf-eval", "{id}", "-m", "scripted", "--client.base-url", "{url}", "--client.api-key-var",
                        "STANDIN_KEY", "-n", "{n}", "-c", "1", "--no-push", "--no-rich", "--env.taskset.split", "test"]),
    ],
    ids=["vf-eval-0.3.1", "eval-0.3.1", "vf-eval-0.4.0"],
)  # fmt: skip
def test_the_commands_of_verifiers(packages: Any, library: str, command: list[str], tmp_path: Path) -> None:
    interpreter(library)
    golden = Golden("arith", {}, each=2, split="test")
    env = golden.environment()
    model = StandIn(golden.agents(env), tools=False)
    with serving(model) as url:
        words = [word.format(id="air-arith", url=url, n=4) for word in command]
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
    """Its wheel has everything: by pip alone, into a folder of its own."""
    python = interpreter("package-v1")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*pip, str(tmp_path / "site"), str(packages("mlgym"))], check=True, capture_output=True)
    (tmp_path / "look.py").write_text("import air_mlgym\nprint(sorted(air_mlgym.__all__), air_mlgym.__file__)\n")
    said = in_environment("package-v1", tmp_path / "site", [str(tmp_path / "look.py")])
    assert "['Env', 'Harness', 'Taskset']" in said and str(tmp_path / "site") in said
