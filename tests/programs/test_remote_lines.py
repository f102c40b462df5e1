"""Lines between the server of remote agents and the run's own endpoint, which may be lost or crowded."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from airloop.programs.episode_queue import EpisodeQueue, EpisodeResult, PendingEpisode
from airloop.programs.remote_api import RemoteServer
from airloop.rollout.program import Address
from airloop.serve import request_limits


def ask(server: RemoteServer, episode: PendingEpisode, lost: httpx.HTTPError) -> httpx.Response:
    async def fail(request: httpx.Request) -> httpx.Response:
        raise lost

    async def work() -> httpx.Response:
        server._policy_at = httpx.AsyncClient(transport=httpx.MockTransport(fail))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(server.app()), base_url="http://run") as client:
            return await client.post(f"/e/{episode.id}/v1/chat/completions", content=b"{}" * 9)

    return asyncio.run(work())


@pytest.fixture
def played() -> tuple[RemoteServer, PendingEpisode]:
    queue = EpisodeQueue()
    episode = PendingEpisode("task", {}, 1, Address("http://policy/v1", "key"), lambda: None)
    queue.add(episode)
    assert queue.take() is episode
    return RemoteServer(queue, "k" * 32, "127.0.0.1", 0), episode


@pytest.mark.parametrize("lost", [httpx.ConnectError("refused"), httpx.ReadError("reset")])
def test_a_lost_line_of_an_episode_that_goes_on_is_no_end_of_it(
    played: tuple[RemoteServer, PendingEpisode], lost: httpx.HTTPError
) -> None:
    server, episode = played
    answer = ask(server, episode, lost)
    assert answer.status_code == 503 and answer.headers["retry-after"]
    assert answer.json()["error"]["code"] == "connection_lost"


def test_a_lost_line_of_an_episode_that_ends_meanwhile_is_its_end(
    played: tuple[RemoteServer, PendingEpisode], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, episode = played

    addresses = iter([episode.address, None])
    monkeypatch.setattr(server._queue, "address", lambda id: next(addresses))
    answer = ask(server, episode, httpx.ReadError("reset"))
    assert answer.status_code == 410 and answer.json()["error"]["code"] == "episode_over"
    assert "retry-after" not in answer.headers


def test_what_there_is_no_room_for_says_when_to_ask_again(
    played: tuple[RemoteServer, PendingEpisode], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, episode = played
    monkeypatch.setattr(request_limits, "MOST_HELD", 5)
    answer = ask(server, episode, httpx.ReadError("reset"))
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "overloaded"
    assert answer.headers["retry-after"]


def test_a_finished_episode_is_nobodys(played: tuple[RemoteServer, PendingEpisode]) -> None:
    server, episode = played
    server._queue.finish(episode.id, EpisodeResult(1.0))
    assert ask(server, episode, httpx.ReadError("reset")).status_code == 401
