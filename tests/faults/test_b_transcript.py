"""B6 and B7 by design: in real episodes of a real engine, what was sampled stays as it was sampled, and what stands
between the replies is what the template writes there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.probe_cases import TUNE, case_of

from airloop.chat.transcript import Transcript
from airloop.doctor.case import Case
from airloop.learn.advantages import trajectory_rows
from airloop.models.chat_forms import CHATML
from airloop.rollout.schedule import TaskSchedule
from airloop.types import Branch, Message, Trajectory, Turn

# Earlier replies in short, as some templates drop earlier thinking; the last one is shown whole.
REWRITES = CHATML.replace(
    "'\\n' + (message['content'] or '') }}",
    "'\\n' + ((message['content'] or '')[:3] if message['role'] == 'assistant' and loop.revindex > 1 "
    "else (message['content'] or '')) }}",
)
STOP = "<|im_end|>"


def played(case: Case) -> list[Trajectory]:
    """One group of real episodes."""
    parts = case.parts
    plan = TaskSchedule(parts.envs, "train", 0).batch(0, 1)
    collected = case.wait(parts.sampler(lambda *_: None).collect(0, plan, 0))
    return [t for group in collected.groups for t in group.trajectories]


def trained(branches: tuple[Branch, ...]) -> dict[int, list[int]]:
    """Of each turn, its trained tokens in all branches together."""
    found: dict[int, list[int]] = {}
    for branch in branches:
        for token, train, turn in zip(branch.tokens, branch.train, branch.turns, strict=True):
            if train:
                found.setdefault(turn, []).append(token)
    return found


def sampled(turns: tuple[Turn, ...]) -> dict[int, list[int]]:
    return {i: list(turn.sampled.token_ids) for i, turn in enumerate(turns) if turn.sampled}


def between(case: Case, trajectory: Trajectory) -> list[str]:
    """The text around the replies: as the tokens say it."""
    (branch,) = trajectory.branches
    marked = "".join(
        case.tokenizer.decode([token]) if turn < 0 else f"\0{turn}\0"
        for token, turn in zip(branch.tokens, branch.turns, strict=True)
    )
    return re.split("(?:\0[0-9]+\0)+", marked)


def rendered(case: Case, trajectory: Trajectory) -> list[str]:
    """The same as the template writes it; a reply that ended by itself has its stop token already."""
    messages = [*list(trajectory.conversations())[-1], trajectory.turns[-1].reply]
    said = iter(range(len(messages)))
    blanks = [m if m["role"] != "assistant" else {**m, "content": f"\0{next(said)}\0"} for m in messages]
    pieces = re.split("\0[0-9]+\0", case.tokenizer.render(blanks, (), False))
    stops = [turn.sampled is not None and turn.sampled.stop == "stop" for turn in trajectory.turns]
    after = [piece.removeprefix(STOP) if stop else piece for piece, stop in zip(pieces[1:], stops, strict=True)]
    return [pieces[0], *after[:-1], ""]  # nothing is rendered after the last reply


@pytest.mark.slow
def test_B6_sampled_tokens_stay_as_sampled_and_a_rewrite_forks(tmp_path: Path) -> None:
    assert REWRITES != CHATML
    (tmp_path / "chat.jinja").write_text(REWRITES)
    with case_of(TUNE, model__chat_template=str(tmp_path / "chat.jinja")) as case:
        episodes = played(case)
        assert min(len(t.turns) for t in episodes) >= 3
        for episode in episodes:
            assert trained(episode.branches) == sampled(episode.turns), "each token as sampled, in one branch only"
            assert len(episode.branches) > 1, "the history was written anew"
        # The engine sampled from the rewritten history, and that is the one that the trainer sees.
        rows = [row for t in episodes for row in trajectory_rows(t, [1.0], 1.0)]
        now = case.parts.learner.logprobs(rows)
        then = {row.key: [lp for lp, train in zip(row.logprobs, row.train, strict=True) if train] for row in rows}
        assert all(now[key] == pytest.approx(then[key], abs=1e-4) for key in then if then[key])


@pytest.fixture(scope="module")
def plain() -> Iterator[Case]:
    """Its template only ever adds."""
    with case_of(TUNE) as case:
        yield case


def test_B6_a_template_that_rewrites_nothing_forks_nothing(plain: Case) -> None:
    assert {len(t.branches) for t in played(plain)} == {1}


def test_B7_what_stands_between_replies_is_what_the_template_writes(plain: Case) -> None:
    episodes = played(plain)
    assert min(len(t.turns) for t in episodes) >= 3
    for episode in episodes:
        assert between(plain, episode) == rendered(plain, episode)
    assert all("\n<|im_start|>user\n" in piece for piece in between(plain, episodes[0])[1:-1])


@pytest.mark.slow
def test_B7_no_tools_and_an_empty_list_are_one_prompt(tmp_path: Path) -> None:
    """The template would say otherwise: it asks whether there is a list, not whether there is anything in it."""
    (tmp_path / "chat.jinja").write_text(CHATML.replace("or tools %}", "or tools is not none %}"))
    with case_of(TUNE, model__chat_template=str(tmp_path / "chat.jinja")) as case:
        prompts = []
        for tools in ((), [], [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]):
            transcript = Transcript(case.tokenizer, tools)
            transcript.show([Message(role="user", content="2+2?")])
            prompts.append(case.tokenizer.decode(transcript.prompt()))
    assert prompts[0] == prompts[1] == "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n"
    assert prompts[2].startswith("<|im_start|>system\n") and "look" in prompts[2]
