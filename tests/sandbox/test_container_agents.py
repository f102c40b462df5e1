"""Agents that are commands in containers without a network: they reach their own episode, and nothing else."""

from __future__ import annotations

import asyncio
import json
import socket
import textwrap
from pathlib import Path
from typing import Any

import pytest
from support.endpoint_world import CHAT, Recorded, trained_is_sampled

from airloop.engine.base import Sampling
from airloop.envs.base import load_environment
from airloop.rollout.collected import RolloutSettings
from airloop.rollout.sampler import Sampler
from airloop.types import Trajectory

AGENT = """
import json, os, time, urllib.error, urllib.request

def ask(text, url):
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    head = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(url + "/chat/completions", body, head)
    return json.load(urllib.request.urlopen(request, timeout=20))["choices"][0]["message"]["content"]

task = json.loads(os.environ["AIR_TASK"])
if task["mode"] == "fails":
    ask("hello", os.environ["OPENAI_BASE_URL"])
    raise SystemExit(3)
if task["mode"] == "sleeps":
    ask("hello", os.environ["OPENAI_BASE_URL"])
    time.sleep(100)
found = {"answer": ask("hello", os.environ["OPENAI_BASE_URL"])}
for name, url in task["urls"].items():
    try:
        found[name] = ask("hello", url)
    except urllib.error.HTTPError as error:
        found[name] = error.code
    except OSError:
        found[name] = 0
json.dump(found, open("found.json", "w"))
os.symlink("/etc/hostname", "link")
os.mkfifo("pipe")
"""
SCORER = """
import json
EXPECTED = {"answer": "yes", "port": 0, "outside": 0, "other": 401}

def score(task, workspace, output):
    if task["mode"] != "looks":
        return 0.5 if [path.name for path in workspace.iterdir()] == ["agent.py"] else 0.0
    assert sorted(path.name for path in workspace.iterdir()) == ["agent.py", "found.json"]
    found = json.loads((workspace / "found.json").read_text())
    assert found == EXPECTED, found
    return 1.0
"""


def play(image: str, folder: Path, deadline_s: float, rows: list[dict[str, Any]]) -> tuple[list[Trajectory], Recorded]:
    (folder / "agent.py").write_text(textwrap.dedent(AGENT))
    (folder / "score.py").write_text(textwrap.dedent(SCORER))
    (folder / "tasks.jsonl").write_text("\n".join(json.dumps({**row, "n": n}) for n in range(3) for row in rows))
    args = {
        "tasks": str(folder / "tasks.jsonl"),
        "command": ["python3", "agent.py"],
        "files": str(folder / "agent.py"),
        "image": image,
        "scorer": f"{folder / 'score.py'}:score",
    }
    env, engine, saved = load_environment("program", args), Recorded(lambda prompt, seed: "yes"), list[Trajectory]()
    settings = RolloutSettings(Sampling(max_tokens=50), 1, retries=0, deadline_s=deadline_s)
    sampler = Sampler(engine, CHAT, {"program": env}, settings, lambda t, _: saved.append(t))

    async def work() -> None:
        try:
            assert not await env.check_sandbox()
            await sampler.evaluate(env.tasks("train")[:2])
        finally:
            await env.close()

    asyncio.run(work())
    return saved, engine


@pytest.mark.long
def test_a_command_in_a_container_reaches_its_policy_and_nothing_else(container_image: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        urls = {
            "port": f"http://127.0.0.1:{server.getsockname()[1]}/v1",
            "outside": "http://192.0.2.1/v1",
            "other": "http://127.0.0.1:3129/e/other/v1",
        }
        saved, engine = play(container_image, tmp_path, 120.0, [{"urls": urls, "mode": "looks"}])
    assert [(t.ending, t.reward, t.error) for t in saved] == [("done", 1.0, "")] * len(saved) and saved
    trained_is_sampled(engine, *saved)


@pytest.mark.long
@pytest.mark.parametrize(("mode", "ending", "crashed"), [("fails", "done", 1.0), ("sleeps", "deadline", 0.0)])
def test_what_it_leaves_is_scored_however_it_ends(
    container_image: str, tmp_path: Path, mode: str, ending: str, crashed: float
) -> None:
    saved, _ = play(container_image, tmp_path, 60.0 if mode == "fails" else 15.0, [{"mode": mode}])
    assert {(t.ending, t.reward, t.metrics["crashed"]) for t in saved} == {(ending, 0.5, crashed)}
