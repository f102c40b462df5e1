"""Episodes for agents elsewhere, whatever the order in which the run and agents come and go."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from airloop.programs.episode_queue import EpisodeQueue, EpisodeResult, PendingEpisode, Refusal
from airloop.rollout.program import Address

SAID = st.sampled_from(
    [
        EpisodeResult(1.0),
        EpisodeResult(0.0),
        EpisodeResult(None, "ValueError"),
        EpisodeResult(None, "gone", abandoned=True),
    ]
)
TASKS = st.sampled_from(["a", "b", "c"])


def offered(task: str = "a", changed: Any = lambda: None) -> PendingEpisode:
    return PendingEpisode(task, {"x": 1}, 5, Address("http://127.0.0.1:1/e/x/v1", "air-key"), changed)


class Episodes(RuleBasedStateMachine):
    """Beside the queue, what must be so: who waits, who is played and by what they were finished."""

    episodes = Bundle("episodes")

    def __init__(self) -> None:
        super().__init__()
        self.queue = EpisodeQueue()
        self.waiting: list[PendingEpisode] = []
        self.played: list[PendingEpisode] = []
        self.said: dict[str, EpisodeResult] = {}  # accepted by the queue
        self.closed: dict[str, EpisodeResult | None] = {}  # given to the run
        self.told: list[str] = []

    @rule(target=episodes, task=TASKS)
    def offer(self, task: str) -> PendingEpisode:
        episode = offered(task, lambda: self.told.append(episode.id))
        self.queue.add(episode)
        self.waiting.append(episode)
        return episode

    @rule(task=st.one_of(st.none(), TASKS))
    def take(self, task: str | None) -> None:
        wanted = next((e for e in self.waiting if task in (None, e.task)), None)
        assert self.queue.take(task) is wanted
        if wanted is not None:
            self.waiting.remove(wanted)
            self.played.append(wanted)
            assert self.told[-1] == wanted.id

    @rule(episode=episodes, said=SAID)
    def finish(self, episode: PendingEpisode, said: EpisodeResult) -> None:
        try:
            self.queue.finish(episode.id, said)
        except Refusal as refusal:
            known = self.closed.get(episode.id, self.said.get(episode.id))
            expected = 404 if episode in self.waiting else 410 if known is None else 409
            assert refusal.status == expected and known != said
        else:
            assert episode in self.played or self.closed.get(episode.id) == said
            assert self.said.setdefault(episode.id, said) == said

    @rule(episode=episodes)
    def close(self, episode: PendingEpisode) -> None:
        said = self.queue.close(episode)
        assert said == self.said.get(episode.id)  # what an agent was told is finished is what the run gets
        assert self.closed.setdefault(episode.id, said) == said
        for group in (self.waiting, self.played):
            if episode in group:
                group.remove(episode)

    @invariant()
    def only_played_episodes_have_an_address(self) -> None:
        for episode in [*self.waiting, *self.played]:
            expected = episode in self.played and episode.id not in self.said
            assert (self.queue.address(episode.id) is not None) == expected
        assert all(self.queue.address(id) is None for id in self.closed)
        assert self.queue.counts() == {"waiting": len(self.waiting), "played": len(self.played)}


TestEpisodes = Episodes.TestCase
TestEpisodes.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_an_episode_that_never_was_is_not_found() -> None:
    with pytest.raises(Refusal, match="no such episode") as refusal:
        EpisodeQueue().finish("0123", EpisodeResult(1.0))
    assert refusal.value.status == 404


def test_of_many_agents_at_once_each_gets_another() -> None:
    queue = EpisodeQueue()
    for _ in range(200):
        queue.add(offered())
    got: list[str] = []

    def take() -> None:
        while (episode := queue.take()) is not None:
            got.append(episode.id)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == len(set(got)) == 200
