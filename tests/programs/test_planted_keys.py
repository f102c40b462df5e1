"""Keys are nowhere: not in what a run leaves behind, not in its log, not in W&B's files, on no page of the viewer."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import lzma
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from support import warm_process
from support.program_runs import program_run

from airloop.commands.init import STARTER
from airloop.errors import InfraError
from airloop.rollout.program import Address
from airloop.runs.packed import pack_run
from airloop.serve.app import Endpoint
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
    judge = os.environ["JUDGE_URL"]
    said = [{"role": "user", "content": f"say {task['row']} to {keys} of {judge}" if task["row"] % 6 > 4 else "say it"}]
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
CONFIG = program_run("./agent.py:solve", ARGS, more=WANDB, batch=16, examples=8).replace("= 128", "= 512")
PLANTED = {
    "OPENAI_API_KEY": "sk-users-own-0123456789",
    "ANTHROPIC_API_KEY": "sk-ant-users-own-0123456789",
    "JUDGE_API_KEY": "sk-judge-0123456789",
    "JUDGE_URL": "pass-of-a-judge",
    "JUDGE_PROXY": "pass+of%2Fa-proxy",
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "AIR_API_KEY": "air-users-own-0123456789",
    "HF_TOKEN": "hf_users_own_0123456789",
    "VLLM_API_KEY": "vllm-users-own-0123456789",
    "AIR_ADAPTERS_KEY": "adapters-users-own-0123456789",
    "AIR_REMOTE_KEY": "remote-users-own-0123456789",
}
ADDRESSES = {"JUDGE_URL": "https://judge:{}@judge.invalid/v1", "JUDGE_PROXY": "http://me:{}@127.0.0.1:9"}
VARIABLES = {name: ADDRESSES.get(name, "{}").format(key) for name, key in PLANTED.items()}


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str], bytes]:
    """Where a run is, the keys that were there while it ran, and what it said."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "agent.py").write_text(AGENT)
    (folder / "tasks.jsonl").write_text("\n".join(json.dumps({"row": i}) for i in range(60)))
    (folder / "run.toml").write_text(CONFIG)
    noted = tmp_path_factory.mktemp("noted") / "keys.txt"
    env = {**os.environ, **VARIABLES, "NOTED": str(noted), "AIR_CACHE": str(folder / "cache"), "WANDB_MODE": "offline"}
    with contextlib.chdir(folder), commands_seen(PLANTED.values()) as seen:
        done = warm_process.run(["train", "@", "run.toml"], env=env, timeout=600)
    assert done.returncode == 0 and not seen, done.stdout + done.stderr
    episodes = dict.fromkeys(noted.read_text().split())
    keys = {**PLANTED, **{f"episode {i}": key for i, key in enumerate(episodes)}}
    return folder, keys, (done.stdout + done.stderr).encode()


@contextlib.contextmanager
def commands_seen(keys: Iterable[str]) -> Iterator[set[bytes]]:
    """Commands of processes with one of these keys, which everybody on a machine can read."""
    found, done, looked = set[bytes](), threading.Event(), 0
    needles = [key.encode() for key in keys]

    def look() -> None:
        nonlocal looked
        while not done.wait(0.1):
            for place in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    command = place.read_bytes()
                    looked += len(command) > 0
                    found.update({command} if any(needle in command for needle in needles) else set())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield found
    finally:
        done.set()
        looking.join()
    assert looked or not Path("/proc/self/cmdline").exists()


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
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    with serving(Options(folder / "out")) as viewer:
        pages = list(all_pages(viewer))
    assert len(pages) > 40 and any(b"ValueError" in page for page in pages)
    assert not [names for page in pages if (names := found_in(page, keys))]
    assert not [names for text in shown_tokens(pages) if (names := found_in(text.encode(), keys))]
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


def shown_tokens(pages: list[bytes]) -> Iterator[str]:
    """What a page of tokens reads like: each token is a piece of it."""
    answers = [json.loads(page) for page in pages if page.startswith(b'{"branches":')]
    texts = ["".join(token["t"] for token in answer["tokens"]) for answer in answers if answer["tokens"]]
    assert len(texts) > 10 and any("to (" in text for text in texts)
    yield from texts


JUDGED = '''
import logging, os, threading


class Judged(MySession):
    """Asks a judge that fails, and tells everybody with what."""

    async def finish(self):
        said = f"401 of {os.environ['JUDGE_URL']} for {os.environ['JUDGE_API_KEY']}, not {os.environ['HF_TOKEN']}"
        logging.getLogger("airloop.envs.judged").warning(said)
        print(said)
        thread = threading.Thread(target=lambda: 1 / 0, name=said)
        thread.start()
        thread.join()
        raise ValueError(said)


class JudgedEnv(MyEnv):
    name = "judged"

    def open(self, task, seed):
        return Judged(task)
'''
JUDGED_RUN = CONFIG.partition("[[orchestrator.env]]")[0] + '[[orchestrator.env]]\nid = "./judged.py:JudgedEnv"\n'


@pytest.mark.long
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_judge_that_fails_tells_no_key_wherever_it_is_told(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its exception, its log and what it prints: on the terminal, in the log, in episodes, in what is packed."""
    (tmp_path / "judged.py").write_text((STARTER / "my_env.py").read_text() + JUDGED)
    (tmp_path / "run.toml").write_text(JUDGED_RUN)
    env = {**os.environ, **VARIABLES, "AIR_CACHE": str(tmp_path / "cache")}
    with contextlib.chdir(tmp_path):
        done = warm_process.run(
            ["train", "@", "run.toml", "--skip-proofs", "--trainer.processes", ranks], env=env, timeout=600
        )
    printed = done.stdout + done.stderr
    assert done.returncode == 1 and "401 of https://judge:…@judge.invalid/v1 for …, not …" in printed
    (run,) = (tmp_path / "out").glob("exp*")
    monkeypatch.chdir(tmp_path)
    pack_run(run, tmp_path / "packed.tar.xz")
    whole = lzma.decompress((tmp_path / "packed.tar.xz").read_bytes())
    assert not found_in(printed.encode() + whole, PLANTED)
    told = {path.name for path, text in files(run) if b"401 of" in text}
    assert {"log.txt", "status.json"} < told and len(told) > 2
    assert not [str(path) for path, text in files(tmp_path) if found_in(text, PLANTED)]


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
        await env.play_first({}, Address("http://x/v1", Endpoint("m").key("a"), episode="a"))
        await env.score(["a"])

    try:
        with pytest.raises(InfraError, match="some") as told:
            asyncio.run(group())
    finally:
        env.close()
    assert str(told.value).endswith("[] ['…']")
