"""F1, F3 and F6 by design: what is seen and what is trained are two arrays, and log-probs are there from sampling on.
And F7 as far as the config makes it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.examined import TINY, silent, trouble
from support.probe_cases import TUNE, case_of

from airloop.config import load_config
from airloop.doctor.case import Case
from airloop.learn.advantages import Batch, trajectory_rows
from airloop.learn.batches import Row
from airloop.models.chat_forms import CHATML
from airloop.rollout.schedule import TaskSchedule
from airloop.runs.run import read_trajectories
from airloop.training import start
from airloop.types import Trajectory
from airloop.watch.display.display import Display


@pytest.fixture(scope="module")
def case() -> Iterator[Case]:
    with case_of(TUNE) as case:
        yield case


def played(case: Case) -> list[Trajectory]:
    """One group of real episodes of several turns."""
    parts = case.parts
    plan = TaskSchedule(parts.envs, "train", 0).batch(0, 1)
    collected = case.wait(parts.sampler(lambda *_: None).collect(0, plan, 0))
    return [t for group in collected.groups for t in group.trajectories]


def rows_of(episodes: list[Trajectory]) -> list[Row]:
    return [row for t in episodes for row in trajectory_rows(t, [1.0], 1.0)]


@pytest.mark.slow
def test_F1_what_the_loss_counts_changes_nothing_of_what_the_model_sees(case: Case) -> None:
    """The last reply's tokens have the same log-probs whether the loss counts all replies or the last one only."""
    rows = rows_of(played(case))
    last = []
    for row in rows:
        start = max(i for i, train in enumerate(row.train) if train and not row.train[i - 1])
        last.append(replace(row, train=tuple(train and i >= start for i, train in enumerate(row.train))))
    whole, only = (case.parts.learner.logprobs(some) for some in (rows, last))
    for row in rows:
        assert 0 < len(only[row.key]) < len(whole[row.key])
        assert only[row.key] == pytest.approx(whole[row.key][-len(only[row.key]) :], abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["interleaved", "branching"])
def test_F3_a_token_is_trained_if_and_only_if_it_was_sampled(strategy: str, tmp_path: Path) -> None:
    """In episodes of several turns, also where the template hides earlier replies."""
    hides = CHATML.replace("(message['content'] or '') }}", "(message['content'] if loop.last else '-') }}", 1)
    (tmp_path / "chat.jinja").write_text(hides)
    for template in ({}, {"model__chat_template": str(tmp_path / "chat.jinja")}):
        with case_of(TUNE, orchestrator__trajectory_strategy=strategy, **template) as case:
            for episode in played(case):
                wanted = [t for turn in episode.turns if turn.sampled for t in turn.sampled.token_ids]
                rows = trajectory_rows(episode, [1.0], 1.0)
                counted = sorted(
                    (turn, i, token)
                    for row, branch in zip(rows, episode.branches, strict=True)
                    for i, (token, train, turn) in enumerate(zip(row.tokens, row.train, branch.turns, strict=True))
                    if train
                )
                assert all(turn >= 0 for turn, _, _ in counted)
                assert [token for _, _, token in counted] == wanted
                one = strategy == "interleaved" and not template
                assert len(episode.branches) == (1 if one else len(episode.turns))


@pytest.mark.slow
def test_F6_logprobs_are_recorded_with_every_sampled_token_and_used_in_every_pass(tmp_path: Path) -> None:
    flags = {
        "model.name": "tiny:llama",
        "model.dtype": "float32",
        "orchestrator.env.0.id": "arith",
        "seq_len": "48",
        "orchestrator.batch_size": "8",
        "orchestrator.rollouts_per_example": "4",
        "orchestrator.sampling.max_tokens": "4",
        "orchestrator.eval.num_examples": "1",
        "trainer.loss.passes": "3",
        "trainer.loss.kl_beta": "0.01",  # so that episodes that scored alike are trained on too
        "max_steps": "1",
        "output_dir": str(tmp_path),
    }
    config = load_config([word for key, value in flags.items() for word in (f"--{key}", value)])
    run = start(config, Display(quiet=True), skip_proofs=True).run
    saved = {t.id: t for t in read_trajectories(run.path / "trajectories" / "step_0000")}
    lines = [json.loads(line) for line in (run.path / "tokens" / "step_0000.jsonl").read_text().splitlines()]
    assert len(saved) == len(lines) == 8
    for line in lines:
        (turn,) = saved[line["id"]].turns
        assert turn.sampled is not None and len(turn.sampled.logprobs) == len(turn.sampled.token_ids) > 0
        assert all(math.isfinite(logprob) and logprob < 0 for logprob in turn.sampled.logprobs)
        # What the first of the three passes computed is what was recorded at sampling.
        assert line["logprobs"][0] == pytest.approx(turn.sampled.logprobs, abs=1e-4)


def test_F6_a_batch_without_them_is_never_trained_on(case: Case) -> None:
    rows = rows_of(played(case))
    without = [replace(row, logprobs=()) for row in rows]
    with pytest.raises(ValueError, match="argument"):
        case.parts.learner.update(Batch(tuple(without), {}, len(without)))


@pytest.mark.slow
def test_F7_truncated_sampling_is_told_with_the_lines_that_end_it() -> None:
    ids, finding = trouble([*TINY, "--orchestrator.sampling.top_p", "0.9", "--orchestrator.sampling.top_k", "20"], "F7")
    assert ids == ("F7",) and finding.verdict == "warn"
    assert "orchestrator.sampling has top_p = 0.9, top_k = 20" in finding.seen and "untruncated softmax" in finding.why
    assert finding.lines == {"orchestrator.sampling.top_p": 1.0, "orchestrator.sampling.top_k": 0}
    assert silent(TINY, "settings_are_usual")
