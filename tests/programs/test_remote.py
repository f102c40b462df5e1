"""Agents that live elsewhere: they ask the run for episodes, play them, and say what they were worth."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.endpoint_world import CHAT, Recorded, trained_is_sampled
from support.ports import free_port
from support.program_runs import program_run

from airloop.config import load_config
from airloop.engine.base import Sampling
from airloop.envs.base import load_environment
from airloop.errors import AirError
from airloop.programs import remote
from airloop.programs.env import ProgramEnv
from airloop.rollout.collected import RolloutSettings
from airloop.rollout.sampler import Sampler
from airloop.runs.run import Run
from airloop.training import start
from airloop.types import Trajectory
from airloop.watch.display.display import Display

KEY = "an-admin-key-that-nobody-else-has"
Agent = Callable[["RemoteClient"], None]


class RemoteClient:
    """An agent's side, over HTTP."""

    def __init__(self, port: int) -> None:
        self.run = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.run, headers={"Authorization": f"Bearer {KEY}"}, timeout=30)
        self.problem: BaseException | None = None

    def there(self) -> str:
        """Where it is, once somebody answers."""
        for _ in range(600):
            with contextlib.suppress(httpx.HTTPError):
                self.http.get("/episodes")
                return self.run
            time.sleep(0.05)
        raise AssertionError("the run does not answer")

    def take(self, **body: Any) -> dict[str, Any]:
        """The next one; the run may not be there yet."""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            try:
                answer = self.http.post("/episodes", json={"wait_s": 5, **body})
            except httpx.HTTPError:
                time.sleep(0.05)
                continue
            if answer.status_code == 200:
                return answer.json()  # type: ignore[no-any-return]
            assert answer.status_code == 503 and answer.headers["retry-after"]
        raise AssertionError("no episode came")

    def say(self, episode: dict[str, Any], text: str = "x", key: str = "") -> httpx.Response:
        head = {"Authorization": f"Bearer {key or episode['api_key']}"}
        body = {"messages": [{"role": "user", "content": text}]}
        return httpx.post(f"{episode['url']}/chat/completions", json=body, headers=head, timeout=30)

    def model(self, episode: dict[str, Any], name: str, key: str = "") -> httpx.Response:
        head = {"Authorization": f"Bearer {key or episode['api_key']}"}
        return httpx.get(f"{episode['url']}/models/{name}", headers=head, timeout=30)

    def end(self, episode: dict[str, Any], how: str = "finish", key: str = KEY, **body: Any) -> httpx.Response:
        head = {"Authorization": f"Bearer {key}"}
        return self.http.post(f"/episodes/{episode['id']}/{how}", json=body, headers=head)


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ProgramEnv]]:
    monkeypatch.setenv("AIR_REMOTE_KEY", KEY)
    (tmp_path / "tasks.jsonl").write_text("\n".join(json.dumps({"word": f"w{i}"}) for i in range(40)))

    def made(**args: Any) -> ProgramEnv:
        given = {"tasks": str(tmp_path / "tasks.jsonl"), "remote": True, "port": free_port(), **args}
        env = load_environment("program", given)
        assert isinstance(env, ProgramEnv)
        return env

    yield made


def play(
    env: ProgramEnv, agent: Agent, count: int = 1, engine: Any = None, outlived: bool = False, **more: Any
) -> tuple[list[Trajectory], Recorded]:
    """Episodes of the run on this side, the agent in a thread on the other. `outlived`: it goes on until the run has
    ended."""
    engine, client, saved = engine or Recorded(), RemoteClient(env.args.port), list[Trajectory]()
    given = {"retries": 0, "retry_wait_s": 0.01, "deadline_s": 20.0, **more}
    sampler = Sampler(
        engine,
        CHAT,
        {"program": env},
        RolloutSettings(Sampling(max_tokens=50), 1, **given),
        lambda t, _: saved.append(t),
    )

    def run() -> None:
        try:
            agent(client)
        except BaseException as error:
            client.problem = error

    async def work() -> None:
        thread = threading.Thread(target=run)
        thread.start()
        try:
            await sampler.evaluate(env.tasks("train")[:count])
            if not outlived:
                await asyncio.to_thread(thread.join)
        finally:
            await env.close()
            await asyncio.to_thread(thread.join)

    asyncio.run(work())
    if client.problem is not None:
        raise client.problem
    return saved, engine


def test_an_agent_asks_for_an_episode_plays_it_and_finishes_it(env: Any) -> None:
    def agent(client: RemoteClient) -> None:
        episode = client.take()
        assert set(episode["task"]) == {"word"} and episode["seconds"] == 20.0 and isinstance(episode["seed"], int)
        first = client.say(episode).json()["choices"][0]["message"]
        assert first["content"].startswith("yes")
        assert client.model(episode, "org/mine").json()["id"] == "org/mine"
        assert client.model(episode, "mine", key="another").status_code == 401
        assert client.end(episode, rewards=0.5).status_code == 200
        assert client.end(episode, rewards=0.5).status_code == 200  # it may not have heard the answer
        assert client.end(episode, rewards=0.6).status_code in (409, 410)
        assert client.say(episode).status_code == 401

    (one,), engine = play(env(), agent)
    assert (one.ending, one.reward, len(one.turns)) == ("done", 0.5, 1)
    trained_is_sampled(engine, one)


def test_the_run_decides_which_task_is_played(env: Any) -> None:
    """Agents get what the run's groups need, in its order, and each of them once."""
    made = env()
    wanted = [task.id for task in made.tasks("train")[:6]]
    got: list[str] = []

    def agent(client: RemoteClient) -> None:
        third = client.take(task=wanted[2])
        others = [client.take() for _ in range(5)]
        got.extend(episode["task_id"] for episode in [third, *others])
        for episode in [third, *others]:
            client.say(episode)
            assert client.end(episode, rewards={"score": 1.0, "steps": 3}).status_code == 200

    played, engine = play(made, agent, 6)
    assert got[0] == wanted[2] and sorted(got) == sorted(wanted)
    assert sorted(t.task.id for t in played) == sorted(wanted) and all(t.metrics["steps"] == 3.0 for t in played)
    trained_is_sampled(engine, *played)


def test_only_the_admins_key_asks_and_finishes(env: Any) -> None:
    def agent(client: RemoteClient) -> None:
        one, other = client.take(), client.take()
        bare = httpx.Client(base_url=client.run)
        for key in (one["api_key"], "wrong", "", KEY + "x"):
            head = {"Authorization": f"Bearer {key}"} if key else {}
            for path in ("/episodes", f"/episodes/{one['id']}/finish", f"/episodes/{one['id']}/abandon"):
                assert bare.post(path, json={"rewards": 1.0}, headers=head).status_code == 401
            assert bare.get("/episodes", headers=head).status_code == 401
        assert client.say(one, key=other["api_key"]).status_code == 401
        assert client.say(one, key=KEY).status_code == 401
        assert client.say({**one, "url": f"{client.run}/e/{'0' * 16}/v1"}).status_code == 401
        sneaky = f"{client.run}/e/{one['id']}/v1/../../{other['id']}/v1"
        assert client.say({**one, "url": sneaky}).status_code in (401, 404)
        assert client.http.post(f"/e/{one['id']}/finish", json={"rewards": 1.0}).status_code == 401
        for episode in (one, other):
            assert client.say(episode).status_code == 200
            assert client.end(episode, rewards=0.0).status_code == 200

    played, _ = play(env(), agent, 2)
    assert [t.reward for t in played] == [0.0, 0.0] and [len(t.turns) for t in played] == [1, 1]


def test_an_episode_that_is_lost_or_given_up_is_tried_again(env: Any) -> None:
    ids: list[str] = []

    def agent(client: RemoteClient) -> None:
        lost = client.take()
        client.say(lost)
        again = client.take()  # when the first one's time is over
        assert client.end(lost, rewards=1.0).status_code == 410
        assert client.end(again, "abandon", error="my disk is full").status_code == 200
        third = client.take()
        client.say(third)
        assert client.end(third, rewards=0.25).status_code == 200
        ids.extend(e["task_id"] for e in (lost, again, third))

    played, _ = play(env(), agent, retries=2, deadline_s=5.0)
    assert len(set(ids)) == 1
    assert [t.ending for t in played] == ["infra_error", "infra_error", "done"] and played[2].reward == 0.25
    assert "did not finish it within 5 s" in played[0].error and "my disk is full" in played[1].error


def test_without_agents_it_is_told_what_is_waited_for(env: Any) -> None:
    (one,), _ = play(env(patience_s=0.3), lambda client: None)
    assert one.ending == "infra_error" and "no remote agent asked for the episode within 0 s" in one.error


def test_a_failed_program_and_words_that_are_no_rewards(env: Any) -> None:
    def agent(client: RemoteClient) -> None:
        episode = client.take()
        client.say(episode)
        for wrong in ({}, {"rewards": "much"}, {"rewards": {"score": None}}, {"rewards": [1]}):
            assert client.end(episode, **wrong).status_code == 400
        assert client.http.post(f"/episodes/{episode['id']}/finish", content=b"{").status_code == 400
        assert client.http.post(f"/episodes/{episode['id']}/finish", content=b'{"rewards": NaN}').status_code == 400
        assert client.http.post("/episodes/nobody/finish", json={"rewards": 1.0}).status_code == 404
        assert client.http.post("/episodes", json={"wait_s": "long"}).status_code == 400
        assert client.end(episode, error="ValueError: no").status_code == 200

    (one,), _ = play(env(), agent)
    assert (
        one.ending == "done" and one.reward == 0.0 and one.metrics["crashed"] == 1.0 and one.error == "ValueError: no"
    )


def test_a_body_that_is_too_large_is_refused(env: Any) -> None:
    """Whoever sends it; and it is not held while it comes."""

    def agent(client: RemoteClient) -> None:
        episode = client.take()
        for url in (f"/episodes/{episode['id']}/finish", f"/e/{episode['id']}/v1/chat/completions"):
            for key, status in ((KEY, 413), (episode["api_key"], 413 if url.startswith("/e/") else 401)):
                head = {"Authorization": f"Bearer {key}"}
                with contextlib.suppress(httpx.WriteError, httpx.ReadError):  # it hung up before it had heard all
                    sent = client.http.post(url, content=(b"x" * (1 << 20) for _ in range(64)), headers=head)
                    assert sent.status_code == status
        assert client.say(episode).status_code == 200 and client.end(episode, rewards=1.0).status_code == 200

    (one,), _ = play(env(), agent)
    assert one.reward == 1.0


def test_an_agent_that_hangs_up_ends_its_sampling(env: Any) -> None:
    class Slow(Recorded):
        asked = False

        async def generate(self, token_ids: Any, sampling: Any, order: str = "") -> Any:
            await asyncio.sleep(0.1 if self.asked else 8.0)
            return await super().generate(token_ids, sampling, order)

    def agent(client: RemoteClient) -> None:
        episode = client.take()
        head = {"Authorization": f"Bearer {episode['api_key']}"}
        body = {"messages": [{"role": "user", "content": "x"}]}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{episode['url']}/chat/completions", json=body, headers=head, timeout=2.0)
        Slow.asked = True
        assert client.say(episode).status_code == 200
        client.end(episode, rewards=1.0)

    (one,), _ = play(env(), agent, engine=Slow())
    assert one.metrics["requests_abandoned"] == 1.0 and len(one.turns) == 1


def test_the_client_has_40_lines_and_plays(env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Path(remote.__file__).read_text().count("\n") <= 40
    seen: list[str] = []

    def solve(task: dict[str, Any], url: str, key: str) -> Any:
        from airloop.programs.client import Client

        seen.append(task["word"])
        if len(seen) == 1:
            time.sleep(1.5)  # an episode that is longer than its patience with the run
        reply = Client(url, key).create(messages=[{"role": "user", "content": task["word"]}])
        if len(seen) == 2:
            raise ValueError("a bug of mine")
        if len(seen) == 3:
            raise ConnectionError("the way is lost")
        return {"score": float("yes" in reply.choices[0].message.content)}

    more = {"outlived": True, "retries": 1, "max_concurrent": 1}
    played, _ = play(env(), lambda client: remote.play(client.there(), solve, patience_s=1.0), 4, **more)
    assert [t.ending for t in played] == ["done", "done", "infra_error", "done", "done"]
    assert [t.reward for t in played] == [1.0, 0.0, 0.0, 1.0, 1.0] and "the way is lost" in played[2].error
    assert len(seen) == 5 and "ValueError('a bug of mine')" in played[1].error


def test_the_client_needs_nothing_of_air(env: Any, tmp_path: Path) -> None:
    """As it is, in a process that cannot import airloop."""
    made = env()
    (tmp_path / "remote.py").write_text(Path(remote.__file__).read_text())
    agent = tmp_path / "agent.py"
    agent.write_text(
        "import json, sys, urllib.request, remote\n"
        "assert not any('airloop' in name for name in sys.modules)\n"
        "def solve(task, url, key):\n"
        "    body = json.dumps({'messages': [{'role': 'user', 'content': task['word']}]}).encode()\n"
        "    head = {'Authorization': 'Bearer ' + key, 'Content-Type': 'application/json'}\n"
        "    asked = urllib.request.Request(url + '/chat/completions', body, head)\n"
        "    return float('yes' in json.load(urllib.request.urlopen(asked))['choices'][0]['message']['content'])\n"
        f"remote.play('http://127.0.0.1:{made.args.port}', solve, patience_s=2)\n"
    )

    def run(client: RemoteClient) -> None:
        client.there()
        subprocess.run([sys.executable, "-S", str(agent)], check=True, timeout=60)

    played, _ = play(made, run, 3, outlived=True)
    assert [t.reward for t in played] == [1.0] * 3


@pytest.mark.parametrize(
    ("args", "key", "said"),
    [
        ({}, None, "AIR_REMOTE_KEY is not set"),
        ({}, "short", "is no key"),
        ({"key_file": "open"}, None, "chmod 600"),
        ({"key_file": "absent"}, None, "cannot be read"),
        ({"remote": False, "port": 8400}, KEY, "remote = true"),
        ({"command": ["x"], "scorer": "x.py:f"}, KEY, "leave one out"),
        ({"hidden": ["word"]}, KEY, "no command"),
    ],
)
def test_what_remote_agents_need(
    env: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: dict[str, Any], key: str | None, said: str
) -> None:
    (tmp_path / "open").write_text(KEY)
    (tmp_path / "open").chmod(0o644)
    monkeypatch.delenv("AIR_REMOTE_KEY")
    if key:
        monkeypatch.setenv("AIR_REMOTE_KEY", key)
    if "key_file" in args:
        args = {"key_file": str(tmp_path / args["key_file"])}
    with pytest.raises(AirError, match=said):
        made = env(**args)
        (lack,) = made.lacks()
        raise AirError(lack.what, lack.fix)


def test_a_key_may_lie_in_a_file_of_ones_own(env: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIR_REMOTE_KEY")
    (tmp_path / "key").write_text(KEY + "\n")
    (tmp_path / "key").chmod(0o600)
    made = env(key_file=str(tmp_path / "key"))
    assert not made.lacks()

    def agent(client: RemoteClient) -> None:
        episode = client.take()
        client.say(episode)
        assert client.end(episode, rewards=1.0).status_code == 200

    (one,), _ = play(made, agent)
    assert one.reward == 1.0


def test_a_port_that_is_taken_is_told(env: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        made = env(port=server.getsockname()[1])
        with pytest.raises(AirError, match=r"cannot listen.*(\n.*)*port"):
            play(made, lambda client: None)


ARGS = '{ remote = true, port = PORT, tasks = "tasks.jsonl" }'
CONFIG = program_run("program", ARGS)


@pytest.mark.long
def test_a_run_of_remote_agents_is_a_run_like_any_other(env: Any, tmp_path: Path) -> None:
    """Groups are whole, no key is in any file of the run; agents wait while it trains."""
    port = free_port()
    (tmp_path / "run.toml").write_text(CONFIG.replace("PORT", str(port)))

    def solve(task: dict[str, Any], url: str, key: str) -> float:
        from airloop.programs.client import Client

        text = Client(url, key).create(messages=[{"role": "user", "content": task["word"]}]).choices[0].message.content
        return sum(letter.islower() for letter in text) / max(len(text), 1)

    def work() -> None:
        with contextlib.suppress(KeyError):  # it outlives this test, and with it the key
            remote.play(f"http://127.0.0.1:{port}", solve, 60)

    agents = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for agent in agents:
        agent.start()
    config = load_config(["@", str(tmp_path / "run.toml"), "--output_dir", str(tmp_path / "out")])
    done = start(config, Display(quiet=True))
    played = Run.open(done.run.path).finished(1)
    assert len(played) == 8 and all(t.branches for t in played.values())
    secret = re.compile(rb"air-[\w-]{43}|" + KEY.encode())
    files = [path for path in Path(done.run.path).rglob("*") if path.is_file()]
    assert files and not [path for path in files if secret.search(path.read_bytes())]
