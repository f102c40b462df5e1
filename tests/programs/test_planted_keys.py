"""Keys are nowhere: not in what a run leaves behind, not in its log, not in W&B's files, on no page of the viewer."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import warm_process
from support.program_runs import program_run

from airloop.errors import InfraError
from airloop.rollout.program import Address
from airloop.verifiers import host
from airloop_view.server import Options, Viewer, serving

AGENT = '''
import os
import sys

def solve(task, client):
    """Careless with every key that it has: its own episode's, and that of a judge."""
    keys = os.environ["OPENAI_API_KEY"], os.environ["JUDGE_API_KEY"]
    assert keys[0].startswith("air-")  # the user's own is not to be had
    assert not {"VLLM_API_KEY", "AIR_ADAPTERS_KEY", "AIR_REMOTE_KEY"} & set(os.environ)  # nor is what the run asks
    with open(os.environ["NOTED"], "a") as file:
        file.write(keys[0] + "\\n")
    print("keys:", *keys)
    print("keys:", *keys, file=sys.stderr)
    said = [{"role": "user", "content": f"say {task['row']}"}]
    text = client.chat.completions.create(model="m", messages=said, max_tokens=8).choices[0].message.content or " "
    ways = task["row"] % 6
    if ways == 1:
        raise ValueError(f"the judge refused {keys}")
    if ways == 2:
        sys.exit(f"cannot go on with {keys}")
    if ways == 3:
        os._exit(3)
    return sum(letter.islower() for letter in text) / max(len(text), 1)
'''
WANDB = """\
[wandb]
project = "keys"
offline = true
samples = 4
"""
ARGS = '{ tasks = "tasks.jsonl" }'
CONFIG = program_run("./agent.py:solve", ARGS, more=WANDB, batch=16, examples=8)
PLANTED = {
    "OPENAI_API_KEY": "sk-users-own-0123456789",
    "ANTHROPIC_API_KEY": "sk-ant-users-own-0123456789",
    "JUDGE_API_KEY": "sk-judge-0123456789",
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "AIR_API_KEY": "air-users-own-0123456789",
    "HF_TOKEN": "hf_users_own_0123456789",
    "VLLM_API_KEY": "vllm-users-own-0123456789",
    "AIR_ADAPTERS_KEY": "adapters-users-own-0123456789",
    "AIR_REMOTE_KEY": "remote-users-own-0123456789",
}


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str], bytes]:
    """Where a run is, the keys that were there while it ran, and what it said."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "agent.py").write_text(AGENT)
    (folder / "tasks.jsonl").write_text("\n".join(json.dumps({"row": i}) for i in range(60)))
    (folder / "run.toml").write_text(CONFIG)
    noted = tmp_path_factory.mktemp("noted") / "keys.txt"
    env = {**os.environ, **PLANTED, "NOTED": str(noted), "AIR_CACHE": str(folder / "cache"), "WANDB_MODE": "offline"}
    with contextlib.chdir(folder):
        done = warm_process.run(["train", "@", "run.toml"], env=env, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    episodes = dict.fromkeys(noted.read_text().split())
    keys = {**PLANTED, **{f"episode {i}": key for i, key in enumerate(episodes)}}
    return folder, keys, (done.stdout + done.stderr).encode()


def found_in(text: bytes, keys: dict[str, str]) -> list[str]:
    return [name for name, key in keys.items() if key.encode() in text]


def files(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            yield path, gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content


@pytest.mark.slow
def test_no_key_is_in_what_a_run_leaves_behind(left_behind: tuple[Path, dict[str, str], bytes]) -> None:
    folder, keys, printed = left_behind
    assert len(keys) > len(PLANTED) + 20 and not found_in(printed, keys)
    read = dict(files(folder))
    assert any(path.suffix == ".wandb" for path in read) and any(path.name == "log.txt" for path in read)
    crashes = [path for path, text in read.items() if b"the judge refused" in text and path.suffix == ".json"]
    assert crashes, "no episode has crashed: nothing was masked"
    leaks = {str(path): names for path, text in read.items() if (names := found_in(text, keys))}
    assert not leaks


@pytest.mark.slow
def test_no_key_is_on_a_page_of_the_viewer(
    left_behind: tuple[Path, dict[str, str], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, keys, _ = left_behind
    monkeypatch.setenv("AIR_CACHE", str(tmp_path))
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    with serving(Options(folder / "out")) as viewer:
        pages = list(all_pages(viewer))
    assert len(pages) > 40 and any(b"ValueError" in page for page in pages)
    assert not [names for page in pages if (names := found_in(page, keys))]
    assert not [str(path) for path, text in files(tmp_path) if found_in(text, keys)]


def all_pages(viewer: Viewer) -> Iterator[bytes]:
    import httpx

    with httpx.Client(base_url=f"http://127.0.0.1:{viewer.port}", timeout=60) as http:

        def get(path: str, **values: str) -> bytes:
            answer = http.get(path, params=values)
            assert answer.status_code == 200, (path, values, answer.text[:300])
            return answer.content

        yield from (get(path) for path in ("/", "/api/about", "/api/runs", "/api/names"))
        for run in (row["id"] for row in json.loads(get("/api/runs"))["runs"]):
            yield get("/api/run", run=run)
            for row in json.loads(get("/api/trajectories", run=run, limit="500"))["rows"]:
                for path in ("/api/trajectory", "/api/tokens", "/api/raw", "/export"):
                    yield get(path, run=row["run"], id=row["id"])


WORKER = """
import json, os, sys
for line in sys.stdin:
    order = json.loads(line)
    there = [name for name in os.environ if name in ("VLLM_API_KEY", "AIR_ADAPTERS_KEY", "AIR_REMOTE_KEY")]
    kept = [order["api_key"]] if order["do"] == "play" else kept
    result = {"infra": f"{there} {kept}"} if order["do"] == "score" else {}
    print(json.dumps({"id": order["id"], "code": 0, "result": result, "printed": ""}), flush=True)
"""


def test_an_environment_of_verifiers_has_no_key_of_the_run_and_says_none_of_an_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "worker.py").write_text(WORKER)
    monkeypatch.setattr(host, "WORKER", tmp_path / "worker.py")
    env = host.Host("some", sys.executable, {})

    async def group() -> None:
        await env.play_first({}, Address("http://x/v1", "air-of-this-episode", episode="a"))
        await env.score(["a"])

    try:
        with pytest.raises(InfraError, match="some") as told:
            asyncio.run(group())
    finally:
        env.close()
    assert str(told.value).endswith("[] ['…']")
