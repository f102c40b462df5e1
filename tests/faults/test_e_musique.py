"""Section E of the failures people met, in MuSiQue: a reward that fails is told, and no curve hides another."""

from __future__ import annotations

import pytest
from support.musique_world import call, make, play, scripted

from airloop.rollout.episode import EpisodeDefect
from airloop.watch.metrics.families import by_family
from airloop_envs.musique import scores


def test_E3_an_exception_in_a_score_is_an_error_with_its_trajectory(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> float:
        raise TypeError("expected a message of another type")

    monkeypatch.setattr(scores, "f1", broken)
    with pytest.raises(EpisodeDefect, match="expected a message of another type") as caught:
        play(make(), [call("get_document", id=1), call("complete", final_answer="x", cited_doc_ids=[1])])
    saved = caught.value.trajectory
    assert len(saved.turns) == 2 and "expected a message of another type" in saved.error
    assert saved.rewards == {}


def test_E5_rewards_are_not_scaled_by_hops_and_each_number_of_hops_has_its_curve() -> None:
    env = make()
    curves = by_family(scripted(env, "oracle", env.tasks("train")))
    assert set(curves) == {"generated-2hop", "generated-3hop", "generated-4hop"}
    assert all(row["reward"] == pytest.approx(1) for row in curves.values())
    families = [task.family for task in env.tasks("train")]
    assert len(set(families[:10])) > 1 and families != sorted(families)
