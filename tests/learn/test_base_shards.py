"""An adapter's base in shards, over gloo: the same numbers as replicas to the last bit, whole between updates, and no
more than two blocks at a time in one."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from test_learner import group_rows
from test_parallel import close, make_learner, on_ranks, sample, updates

from airloop.config import Config
from airloop.learn.advantages import Batch
from airloop.learn.learner import Learner
from airloop.learn.losses import LossSettings
from airloop.plan import plan, read_shape
from airloop.ranks import RankLost, Ranks

CASES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("qwen2", {"ac": True}),
    ("qwen3", {"token_budget": 60, "passes": 2, "loss": "gspo", "loss_settings": LossSettings(kl_beta=0.1)}),
    ("qwen2", {"impl": "hf"}),
    ("llama", {"impl": "hf", "ac": True}),
]


def both_ways(ranks: Ranks, cases: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    return [[updates(ranks, "lora", {**changes, "base": b}, kind) for b in (False, True)] for kind, changes in cases]


@pytest.mark.long
@pytest.mark.parametrize(("size", "cases"), [(2, CASES), (3, CASES[1:4:2])])
def test_shards_learn_what_replicas_and_one_process_learn(
    tmp_path: Path, size: int, cases: list[tuple[str, dict[str, Any]]]
) -> None:
    """Gathered weights are the same bits; against one process only the order of sums differs, as with replicas."""
    found = on_ranks(size, tmp_path, both_ways, cases)
    for i, (kind, changes) in enumerate(cases):
        replicas = found[0][i][0]
        for answer in found:
            close(answer[i][1], replicas, 0.0)
        close(updates(Ranks(), "lora", changes, kind), found[0][i][1], 1e-6)


def held(learner: Learner) -> int:
    """Bytes of the base's weights on this rank, as far as its modules know them."""
    found = 0
    for name, p in learner.policy.model.named_parameters():
        local: Any = p.to_local() if hasattr(p, "to_local") else p
        found += local.untyped_storage().nbytes() if "lora_" not in name else 0
    return found


def weigh(ranks: Ranks) -> tuple[list[int], int, int, list[Any]]:
    """What is held during an update and after it; sampled replies at each rank's own pace."""
    learner = make_learner(ranks, "lora", {"base": True, "ac": True, "lr": 1e-2}, "qwen2")
    hold, seen = learner.policy.hold, list[int]()
    assert hold is not None

    def weighed(index: int, ahead: int) -> None:
        hold(index, ahead)
        seen.append(held(learner))

    learner.policy.hold = weighed
    rows = group_rows()
    learner.update(Batch(tuple(rows), {}, len(rows)))
    replies = asyncio.run(sample(ranks, learner, 2 + 3 * ranks.rank))
    first, after = list(seen), held(learner)
    root: Any = learner.policy.decoder
    noted = root._get_fsdp_state()._comm_ctx.post_forward_order
    assert noted, "FSDP has seen the passes of sampling"
    learner.update(Batch(tuple(rows), {}, len(rows)))
    assert not noted, "and would keep a note of each for ever"
    config = Config(trainer_gpu_ids=[0, 1], model={"dtype": "float32"}, trainer={"model": {"shard": True}})
    made = plan(config, read_shape(learner.policy.model), 1 << 34)
    return first, after, made.backward.weights, replies


@pytest.mark.slow
def test_an_update_holds_what_the_plan_says_and_sampling_the_whole(tmp_path: Path) -> None:
    alone = make_learner(Ranks(), "lora", {"lr": 1e-2, "ac": True}, "qwen2")
    rows = group_rows()
    alone.update(Batch(tuple(rows), {}, len(rows)))
    wanted = asyncio.run(sample(Ranks(), alone, 5))
    layers: Any = alone.policy.model.get_decoder()
    block = sum(4 * p.numel() for name, p in layers.layers[0].named_parameters() if "lora_" not in name)
    for seen, after, planned, replies in on_ranks(2, tmp_path, weigh):
        # What modules do not show: the shard of the block at work, and the next block, which is on its way.
        assert len(seen) == 4 and planned == max(seen) + block // 2 + block
        assert after == held(alone) > max(seen)
        assert replies == wanted[: len(replies)]


def leave_amid(ranks: Ranks, directory: Path) -> None:
    learner = make_learner(ranks, "lora", {"base": True})
    rows = group_rows()
    learner.update(Batch(tuple(rows), {}, len(rows)))
    hold = learner.policy.hold
    assert hold is not None

    def dies(index: int, ahead: int) -> None:
        if ahead < 0:
            os.kill(os.getpid(), 9)
        hold(index, ahead)

    if ranks.rank == 1:
        learner.policy.hold = dies
    with pytest.raises(RankLost) as lost:
        learner.update(Batch(tuple(rows), {}, len(rows)))
    (directory / "said").write_text(str(lost.value))


@pytest.mark.slow
def test_a_rank_that_dies_amid_an_update_is_missed_at_once(tmp_path: Path) -> None:
    with pytest.raises(EOFError):  # of the one that was killed; the first has answered before
        on_ranks(2, tmp_path, leave_amid, tmp_path)
    assert "could not be reached for a block of the base" in (tmp_path / "said").read_text()


def test_one_process_has_nothing_to_spread() -> None:
    learner = make_learner(Ranks(), "lora", {"base": True})
    assert learner.shards is None and learner.policy.hold is None
    assert not any(hasattr(p, "to_local") for p in learner.policy.model.parameters())
