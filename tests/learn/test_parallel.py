"""Several gloo processes on the CPU against one: the same losses, weights and checkpoints."""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ports import free_port
from support.warm_process import Process
from test_learner import group_rows, make_policy
from torch import Tensor

import airloop.ranks
from airloop.engine.base import Sampling
from airloop.engine.embedded import EmbeddedEngine
from airloop.learn.advantages import Batch
from airloop.learn.base_shards import shard
from airloop.learn.batches import Row
from airloop.learn.checkpoints import load_checkpoint, save_checkpoint
from airloop.learn.learner import Learner, LearnerSettings
from airloop.learn.losses import LossSettings
from airloop.learn.parallel import share_rows
from airloop.models.fp32_matmul import are_slow, widen_products
from airloop.ranks import DistributedRanks, RankLost, Ranks

WAIT_S = 240.0
# In a process that is forked from a warm one (support/warm_process.py): this folder, then its order.
RANK = "import sys; sys.path.insert(0, sys.argv[1]); import test_parallel; test_parallel.rank(sys.argv[2])"


def rank(order: str) -> None:
    path = Path(order)
    number, size, address, work, args = pickle.loads(path.read_bytes())
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        ranks = DistributedRanks(number, size, path.parent, "cpu", address)
        answer: tuple[bool, Any] = True, work(ranks, *args)
    except BaseException:
        answer = False, traceback.format_exc()
    path.with_suffix(".answer").write_bytes(pickle.dumps(answer))


def on_ranks(size: int, directory: Path, work: Callable[..., Any], *args: Any, address: str = "") -> list[Any]:
    """work(ranks, *args) in `size` processes; what each returned. `address`: of their store, if it is no file."""
    folder = directory / f"ranks-{time.monotonic_ns()}"
    folder.mkdir()
    orders = [folder / f"rank-{number}" for number in range(size)]
    for number, order in enumerate(orders):
        order.write_bytes(pickle.dumps((number, size, address, work, args)))
    processes = [Process([Path(__file__).parent, order], code=RANK) for order in orders]
    try:
        for process in processes:
            process.wait(WAIT_S)
    finally:
        for process in processes:
            process.kill()
    answers = [order.with_suffix(".answer") for order in orders]
    if any(not answer.exists() for answer in answers):
        raise EOFError(f"of {size} ranks, not all have answered: their exit codes are {[p.wait() for p in processes]}")
    found = [pickle.loads(answer.read_bytes()) for answer in answers]
    for good, answer in found:
        assert good, answer
    return [answer for _, answer in found]


class Alone(Ranks):
    """One of three ranks that never talks."""

    size = 3

    def __init__(self, rank: int) -> None:
        self.rank = rank


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 3)), min_size=1, max_size=20))
def test_rows_are_shared_out_whole_trajectories_at_a_time_and_evenly(shapes: list[tuple[int, int]]) -> None:
    rows = [
        Row(f"t{i}#{b}", (i,) * length, (False, *(True,) * (length - 1)), (0.0,) * length, 1.0, 1.0)
        for i, (length, branches) in enumerate(shapes)
        for b in range(branches)
    ]
    shares = [share_rows(rows, Alone(rank)) for rank in range(3)]
    trained = [r.key for r in rows if any(r.train)]
    assert sorted(r.key for share in shares for r in share) == sorted(trained)
    owners = [{r.key.split("#")[0] for r in share} for share in shares]
    assert sum(len(o) for o in owners) == len(set.union(*owners))
    computed = [sum(len(rows_of) for rows_of in {r.tokens for r in share}) for share in shares]
    longest = max(length for length, _ in shapes)
    assert max(computed) <= sum(computed) / 3 + longest + len(shapes)


def make_learner(ranks: Ranks, train: str, changes: dict[str, Any], kind: str = "llama") -> Learner:
    policy = make_policy(kind, lora=train == "lora")
    policy.impl, base = changes.pop("impl", "auto"), changes.pop("base", False)
    if changes.pop("bf16", False):
        policy.model.to(torch.bfloat16)
        widen_products(are_slow(policy.model))
    if changes.pop("ac", False):
        from airloop.assemble import checkpoint_activations

        checkpoint_activations(policy.model, 1)
    shards = shard(policy, ranks, base)
    return Learner(policy, LearnerSettings(**{"lr": 1e-3, "max_norm": 0.5, **changes}), ranks, shards)


def weights_of(learner: Learner) -> dict[str, Tensor]:
    """As they are served: whole on every rank."""
    return {name: p.detach().float().clone() for name, p in learner.policy.trainable()}


def updates(ranks: Ranks, train: str, changes: dict[str, Any], kind: str, steps: int = 3) -> list[Any]:
    """Metrics of some updates, the log-probs in between, and the weights at the end."""
    learner = make_learner(ranks, train, dict(changes), kind)
    found: list[Any] = []
    for step in range(steps):
        rows = group_rows(step, prompts=2)
        report = learner.update(Batch(tuple(rows), {}, len(rows)))
        for _ in range(ranks.rank):  # ranks are free to sample as much as they like between updates
            learner.logprobs(rows[:2])
        times = {"seconds", "tokens_per_s", "micro_batches", "tokens_computed", "tokens_shared"}
        found.append({k: v for k, v in report.metrics.items() if k not in times})
        found.append({k: report.logprobs[k].tolist() for k in sorted(report.logprobs)})
    return [*found, learner.logprobs(rows), weights_of(learner)]


CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("lora", "llama", {}),
    ("lora", "qwen3", {"token_budget": 60, "passes": 2, "loss": "gspo", "loss_settings": LossSettings(kl_beta=0.1)}),
    ("lora", "llama", {"offload": True}),
    ("full", "llama", {}),
    ("full", "qwen2", {"ac": True}),  # tied embeddings
    ("full", "llama", {"token_budget": 60, "passes": 2, "loss": "gspo", "loss_settings": LossSettings(kl_beta=0.1)}),
    ("full", "qwen3", {"offload": True}),
]


def all_cases(ranks: Ranks) -> list[Any]:
    return [updates(ranks, train, changes, kind) for train, kind, changes in CASES]


@pytest.fixture(scope="module")
def alone() -> list[Any]:
    return all_cases(Ranks())


def close(one: Any, two: Any, tolerance: float) -> None:
    assert type(one) is type(two)
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        for key in one:
            close(one[key], two[key], tolerance)
    elif isinstance(one, list):
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            close(a, b, tolerance)
    elif isinstance(one, Tensor):
        torch.testing.assert_close(one, two, atol=tolerance, rtol=tolerance)
    elif isinstance(one, float):
        assert one == pytest.approx(two, rel=tolerance, abs=tolerance)
    else:
        assert one == two


@pytest.mark.slow
# Three, whose shares differ, tell the same; whole runs of two are held against one process in test_ranks.py.
@pytest.mark.long
@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.soak), 3])
def test_several_ranks_learn_what_one_learns(tmp_path: Path, alone: list[Any], size: int) -> None:
    """fp32: only the order of sums differs, also in the weights after three updates at lr 1e-3."""
    found = on_ranks(size, tmp_path, all_cases)
    for answer in found[1:]:
        close(answer, found[0], 0.0)  # metrics of the whole batch, and the same weights to the last bit
    for (train, _, _), ours, theirs in zip(CASES, alone, found[0], strict=True):
        close(ours, theirs, 1e-6 if train == "lora" else 5e-5)


def few_rows(ranks: Ranks) -> list[Any]:
    """Fewer trajectories than ranks: some have nothing to train on, and none at all is no update."""
    found: list[Any] = []
    for train in ("lora", "full"):
        learner = make_learner(ranks, train, {})
        rows = group_rows(prompts=1, members=1)
        found.append(learner.update(Batch(tuple(rows), {}, 1)).metrics["grad_norm"])
        found.append(learner.update(Batch((), {}, 1)).metrics["grad_norm"])
        found.append(learner.logprobs(rows))
    return found


@pytest.mark.slow
def test_a_rank_without_rows_takes_part(tmp_path: Path) -> None:
    wanted = few_rows(Ranks())
    assert wanted[0] > 0 and wanted[1] == 0
    for answer in on_ranks(3, tmp_path, few_rows):
        close(wanted, answer, 1e-4)


def shard_sizes(ranks: Ranks) -> tuple[int, int, int]:
    learner = make_learner(ranks, "full", {})
    rows = group_rows()
    learner.update(Batch(tuple(rows), {}, len(rows)))
    state = sum(s["exp_avg"].numel() for s in learner.optimiser.adam.state.values())
    return (
        sum(m.numel() for m in learner.optimiser.masters),
        state,
        sum(p.numel() for p in learner.policy.model.parameters()),
    )


@pytest.mark.slow
def test_full_fine_tuning_keeps_masters_and_moments_in_shards(tmp_path: Path) -> None:
    found = on_ranks(2, tmp_path, shard_sizes)
    whole = found[0][2]
    assert sum(masters for masters, _, _ in found) == sum(state for _, state, _ in found) == whole
    assert all(masters < 0.6 * whole for masters, _, _ in found)


async def sample(ranks: Ranks, learner: Learner, replies: int) -> list[Any]:
    engine = EmbeddedEngine(learner.policy, context=64, max_batch=4)
    await ranks.barrier("the engines are there")
    prompts = [[5 + i, 6, 7, 8] for i in range(replies)]
    done = await asyncio.gather(*(engine.generate(p, Sampling(8, seed=i)) for i, p in enumerate(prompts)))
    await engine.close()
    return [g.token_ids for g in done]


def sample_differently(ranks: Ranks, train: str) -> list[Any]:
    """Between updates, ranks sample different numbers of replies at their own pace."""
    learner = make_learner(ranks, train, {"lr": 1e-2})
    rows = group_rows()
    for _ in range(2):
        learner.update(Batch(tuple(rows), {}, len(rows)))
        replies = asyncio.run(sample(ranks, learner, 2 + 3 * ranks.rank))
    return replies


@pytest.mark.slow
@pytest.mark.parametrize("train", ["lora", "full"])
def test_every_rank_samples_from_the_new_weights_at_its_own_pace(tmp_path: Path, train: str) -> None:
    wanted = sample_differently(Ranks(), train)
    short, long = on_ranks(2, tmp_path, sample_differently, train)
    assert short == wanted == long[:2] and len(long) == 5


def save_or_load(
    ranks: Ranks, train: str, changes: dict[str, Any], directory: Path, load: bool
) -> tuple[int, dict[str, list[float]], list[str]]:
    learner = make_learner(ranks, train, dict(changes))
    if load:
        assert load_checkpoint(directory / "step_2", learner) == 2
    else:
        for step in range(2):
            rows = group_rows(step)
            learner.update(Batch(tuple(rows), {}, len(rows)))
        save_checkpoint(directory, learner, 2)
    rows = group_rows(5)
    learner.update(Batch(tuple(rows), {}, len(rows)))
    dtypes = sorted({str(p.dtype) for _, p in learner.policy.trainable()})
    return learner.updates, learner.logprobs(rows), dtypes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train", "changes", "tolerance"),
    [
        ("lora", {}, 2e-4),
        pytest.param("lora", {"base": True}, 2e-4, marks=pytest.mark.long),
        pytest.param("full", {}, 2e-4, marks=pytest.mark.long),
        ("full", {"bf16": True}, 0.1),
    ],
)
def test_a_checkpoint_of_any_number_of_ranks_goes_on_with_any_other(
    tmp_path: Path, train: str, changes: dict[str, Any], tolerance: float
) -> None:
    """One → two → three, two → one: the next update is the same. In bf16 the fp32 masters travel too."""
    args = (train, changes)
    one, two = tmp_path / "one", tmp_path / "two"
    wanted = save_or_load(Ranks(), *args, one, False)
    assert wanted[0] == 3
    saved = on_ranks(2, tmp_path, save_or_load, *args, two, False)
    for answer in (
        *saved,
        *on_ranks(2, tmp_path, save_or_load, *args, one, True),
        *on_ranks(3, tmp_path, save_or_load, *args, two, True),
        save_or_load(Ranks(), *args, two, True),
    ):
        close(list(wanted), list(answer), tolerance)
    files = [sorted(str(p.relative_to(d)) for p in d.rglob("*") if p.is_file()) for d in (one, two)]
    assert files[0] == files[1]


@pytest.mark.slow
@pytest.mark.parametrize("bf16", [False, True])
def test_an_optimiser_in_the_cpus_memory_does_the_same(bf16: bool) -> None:
    results = []
    for offload in (False, True):
        learner = make_learner(Ranks(), "full", {"offload": offload, "bf16": bf16, "weight_decay": 0.1})
        for step in range(3):
            rows = group_rows(step)
            metrics = learner.update(Batch(tuple(rows), {}, len(rows))).metrics
        results.append((metrics["grad_norm"], metrics["update_ratio"], weights_of(learner)))
        shared = {m.data_ptr() for m in learner.optimiser.masters} & {p.data_ptr() for p in learner.parameters}
        assert bool(shared) is not (offload or bf16)
        assert all(m.device.type == "cpu" and m.dtype == torch.float32 for m in learner.optimiser.masters)
    assert results[0][:2] == results[1][:2]
    assert all(torch.equal(results[0][2][name], results[1][2][name]) for name in results[0][2])


def test_a_checkpoint_goes_on_with_and_without_offload(tmp_path: Path) -> None:
    plain = make_learner(Ranks(), "full", {})
    rows = group_rows()
    plain.update(Batch(tuple(rows), {}, len(rows)))
    save_checkpoint(tmp_path, plain, 1)
    moved = make_learner(Ranks(), "full", {"offload": True})
    load_checkpoint(tmp_path / "step_1", moved)
    for learner in (plain, moved):
        learner.update(Batch(tuple(rows), {}, len(rows)))
    assert all(torch.equal(a, b) for a, b in zip(weights_of(plain).values(), weights_of(moved).values(), strict=True))


def too_late(ranks: Ranks, told: Path) -> str:
    """The second rank does not come before the first has given it up, so that nothing else can have ended the wait."""

    async def go() -> str:
        await ranks.barrier("everybody is here")
        if ranks.rank == 1:
            deadline = time.monotonic() + 60
            while not told.exists() and time.monotonic() < deadline:  # noqa: ASYNC110 - written by another process
                await asyncio.sleep(0.02)
            assert told.exists(), "the first rank still waits"
            return ""
        with pytest.raises(RankLost) as lost:
            await ranks.barrier("the test's second meeting", 0.3)
        told.touch()
        return str(lost.value)

    return asyncio.run(go())


def gone(ranks: Ranks) -> str:
    if ranks.rank == 1:
        return ""  # and its process ends
    with pytest.raises(RankLost) as lost:
        ranks.all_gather_now("x", "the test's figures")
    return str(lost.value)


@pytest.mark.slow
def test_a_wait_ends_with_a_reason(tmp_path: Path) -> None:
    late = on_ranks(2, tmp_path, too_late, tmp_path / "told")[0]
    assert re.search(r"waited \d+ s for rank 1 at: the test's second meeting", late) and "--resume" in late
    assert "for the test's figures" in on_ranks(2, tmp_path, gone)[0]


def sums(ranks: Ranks) -> tuple[list[float], list[int], list[int]]:
    tensors = [torch.full((3,), 1.0 + ranks.rank), torch.full((2, 2), 0.5, dtype=torch.float64)]
    ranks.all_reduce(tensors, "a test")
    return [t.sum().item() for t in tensors], ranks.my_share(range(7)), ranks.all_gather_now(ranks.rank, "a test")


@pytest.mark.slow
def test_sums_shares_and_gathers(tmp_path: Path) -> None:
    assert sums(Ranks()) == ([3.0, 2.0], [0, 1, 2, 3, 4, 5, 6], [0])
    found: Sequence[Any] = on_ranks(2, tmp_path, sums)
    assert [f[0] for f in found] == [[9.0, 4.0]] * 2 and [f[2] for f in found] == [[0, 1]] * 2
    assert [f[1] for f in found] == [[0, 2, 4, 6], [1, 3, 5]]


def leave_at_once(ranks: Ranks) -> list[int]:
    """The last of them has not seen yet that all have come when the first one, which keeps the store, would go."""
    total = torch.ones(3)
    ranks.all_reduce([total], "a sum")
    if ranks.rank == 0:
        time.sleep(0.5)
    else:
        airloop.ranks.PAUSES_S = (1.5, 1.5)
    asyncio.run(ranks.barrier("the end"))
    ranks.close()
    return total.int().tolist()


@pytest.mark.slow
def test_ranks_of_several_machines_meet_at_a_store_that_the_first_keeps_to_the_end(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    assert on_ranks(3, tmp_path, leave_at_once, address=address) == [[3, 3, 3]] * 3
    assert not list(tmp_path.rglob("store"))
