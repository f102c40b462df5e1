"""Faults for bench/doctor.py, each put into the real learner, engine, environment or config, and taken out again."""

from __future__ import annotations

import contextlib
import itertools
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from airloop.chat.forest import Forest
from airloop.doctor.case import Case
from airloop.engine.embedded import EmbeddedEngine
from airloop.envs.arith import ArithEnv, ArithSession
from airloop.learn import advantages, batches, checkpoints, losses
from airloop.learn.batches import MicroBatch, Row
from airloop.learn.learner import Learner
from airloop.types import Action, Branch, Observation, Score
from airloop_lab.faults import blindfold, frozen_copy, replaced

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

Put = Callable[[Case], AbstractContextManager[None]]


@contextmanager
def _health(case: Case) -> Iterator[None]:
    yield


@dataclass(frozen=True)
class Injected:
    """`put_in` gets a case whose parts are loaded. `ids`: one of them must be said, by a failure or a warning."""

    name: str
    ids: tuple[str, ...]
    put_in: Put
    changes: Mapping[str, str] = field(default_factory=dict)  # of the set-up's config
    env: str = ""  # where it can be put in only there
    only: tuple[str, ...] = ()  # names of checks to run, where all would take long
    train: str = ""  # "lora": there must be an adapter
    control: Put = _health  # the same set-up without the fault

    def suits(self, train: str) -> bool:
        return not self.train or self.train == train


PROOFS = ("trainer_agrees", "context_is_seen", "adapter_arrives", "update_moves", "toy_reward_rises")
SIGNAL = ("rewards_differ", "parts_add_up", "parts_fire", "episodes_end")


# --- F1, F3: what the trainer sees and counts


@contextmanager
def _blind(case: Case) -> Iterator[None]:
    with blindfold():
        yield


@contextmanager
def _forgetful(case: Case) -> Iterator[None]:
    _ = case.replies
    original = EmbeddedEngine.generate

    async def generate(self: Any, token_ids: Any, sampling: Any, order: str = "") -> Any:
        return await original(self, token_ids[-1:], sampling, order)

    with replaced(EmbeddedEngine, "generate", generate):
        yield


@contextmanager
def _trains_all(case: Case) -> Iterator[None]:
    original = Forest._branch

    def greedy(self: Any, replies: Any) -> Branch:
        branch = original(self, replies)
        first = branch.train.index(True) if any(branch.train) else 0
        train = tuple(i >= first - 1 for i in range(len(branch.train)))
        return Branch(branch.tokens, train, branch.logprobs, branch.turns)

    with replaced(Forest, "_branch", greedy):
        yield


@contextmanager
def _counts_prompts(case: Case) -> Iterator[None]:
    original = batches._trained

    def everything(batch: MicroBatch) -> Any:
        rows = [Row(r.key, r.tokens, (False, *[True] * (len(r.tokens) - 1)), r.logprobs, 1.0, 1.0) for r in batch.rows]
        return original(MicroBatch(rows, batch.segments, batch.paths))

    with replaced(batches, "_trained", everything):
        yield


# --- F2: what the engine serves


@contextmanager
def _stale_engine(case: Case) -> Iterator[None]:
    with _own_engine(case, frozen_copy(case.parts.policy)):
        yield


@contextmanager
def _own_engine(case: Case, policy: Any, **options: Any) -> Iterator[None]:
    _ = case.replies
    engine = case.parts.engine
    case.parts.engine = EmbeddedEngine(policy, context=case.config.seq_len, max_batch=16, **options)
    try:
        yield
    finally:
        case.wait(case.parts.engine.close())
        case.parts.engine = engine


def _served(change: Callable[[str, torch.Tensor], Any]) -> Put:
    """The engine's own pass copies an adapter that was changed on the way."""

    @contextmanager
    def put_in(case: Case) -> Iterator[None]:
        import support.plain_ops  # noqa: F401 - our own forward pass on a CPU

        from airloop.engine.embedded.forward import Forward

        policy, original = case.parts.policy, Forward.refresh

        @torch.no_grad()
        def refresh(self: Any) -> None:
            held = [(p, p.detach().clone()) for _, p in policy.trainable()]
            for name, parameter in policy.trainable():
                change(name, parameter)
            original(self)
            for parameter, value in held:
                parameter.copy_(value)

        with _own_engine(case, policy, own_forward=True), replaced(Forward, "refresh", refresh):
            yield

    return put_in


def _scaled(times: float) -> Put:
    return _served(lambda name, weight: weight.mul_(times) if "lora_B" in name else None)


def _other(kind: str) -> Put:
    """These matrices are those of another version: as large, not the same."""

    def change(name: str, weight: torch.Tensor) -> None:
        if kind in name:
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            weight.copy_(torch.randn(weight.shape, generator=generator).to(weight) * weight.std())

    return _served(change)


def _without_layer(name: str, weight: torch.Tensor) -> None:
    if ".layers.1." in name and "lora_B" in name:
        weight.zero_()


# --- F5: updates


@contextmanager
def _frozen(case: Case) -> Iterator[None]:
    trained = [p for p in case.parts.learner.parameters if p.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


@contextmanager
def _other_parameters(case: Case) -> Iterator[None]:
    optimiser = case.parts.learner.optimiser
    copies = [torch.nn.Parameter(p.detach().clone()) for p in optimiser.parameters]
    with (
        replaced(optimiser, "parameters", copies),
        replaced(optimiser, "masters", list(copies)),
        replaced(optimiser, "adam", torch.optim.AdamW(copies)),
    ):
        yield


@contextmanager
def _flipped_loss(case: Case) -> Iterator[None]:
    right = losses.LOSSES["grpo"]

    def wrong(terms: Any, settings: Any) -> Any:
        loss, parts = right.token_loss(terms, settings)
        return -loss, parts

    losses.LOSSES["grpo"] = replace(right, token_loss=wrong)
    try:
        yield
    finally:
        losses.LOSSES["grpo"] = right


@contextmanager
def _flipped_advantages(case: Case) -> Iterator[None]:
    right = advantages.group_advantages
    with replaced(advantages, "group_advantages", lambda *a, **k: [-x for x in right(*a, **k)]):
        yield


# --- G2: checkpoints


def _lost(key: str, value: Callable[[Any], Any]) -> Put:
    @contextmanager
    def put_in(case: Case) -> Iterator[None]:
        original = Learner.state
        with replaced(Learner, "state", lambda self: {**original(self), key: value(self)}):
            yield

    return put_in


def _nothing(owner: Any, name: str) -> Put:
    @contextmanager
    def put_in(case: Case) -> Iterator[None]:
        with replaced(owner, name, lambda *_: None):
            yield

    return put_in


# --- E, D19, G9: rewards, in `arith`


def _rewards(grade: Callable[[str], Mapping[str, float]], weights: Mapping[str, float]) -> Put:
    @contextmanager
    def put_in(case: Case) -> Iterator[None]:
        async def act(self: Any, action: Action) -> Observation:
            self.said = action.text
            return Observation("", done=True)

        async def finish(self: Any) -> Score:
            given = grade(self.said)
            return Score(given, {"correct": given.get("correct", 0.0)})

        with replaced(ArithSession, "act", act), replaced(ArithSession, "finish", finish), contextlib.ExitStack() as s:
            for env in case.parts.envs.values():
                assert isinstance(env, ArithEnv)
                s.enter_context(replaced(env, "reward_weights", dict(weights)))
            yield

    return put_in


_EPISODES = itertools.count()


def _chance(text: str) -> float:
    return zlib.crc32(text.encode()) % 1000 / 1000


@contextmanager
def _spoilt(case: Case) -> Iterator[None]:
    async def act(self: Any, action: Action) -> Observation:
        raise ConnectionError("the sandbox is gone")

    with replaced(ArithSession, "act", act):
        yield


_config = _health  # where the fault is in the config's own changes
# Random weights earn nothing in any case: the same environment, with rewards that differ by chance.
_FAIR = _rewards(lambda t: {"correct": float(_chance(t) < 0.5)}, {"correct": 1.0})

LORA: dict[str, Any] = {"only": PROOFS, "train": "lora"}
FAULTS = [
    Injected("the loss mask is the attention mask", ("F1",), _blind, only=PROOFS),
    Injected("the engine forgets the prompt", ("F1",), _forgetful, only=("context_is_seen",)),
    Injected("tokens are trained that nobody sampled", ("F3",), _trains_all, only=("sampled_are_trained",)),
    Injected("the learner counts the prompt", ("F3",), _counts_prompts, only=("trainer_agrees",)),
    Injected("the engine serves the old weights", ("F2",), _stale_engine, only=PROOFS),
    Injected("the engine serves half of the adapter's scale", ("F2",), _scaled(0.5), **LORA),
    Injected("the engine serves 1.5 times the adapter's scale", ("F2",), _scaled(1.5), **LORA),
    Injected("one layer's adapter stays behind", ("F2",), _served(_without_layer), **LORA),
    Injected("first matrices of another version", ("F2",), _other("lora_A"), **LORA),
    Injected("second matrices of another version", ("F2",), _other("lora_B"), **LORA),
    Injected("parameters are frozen", ("F5",), _frozen, only=("update_moves",)),
    Injected("the optimiser holds other parameters", ("F5",), _other_parameters, only=("update_moves",)),
    Injected("the loss has the wrong sign", ("F5",), _flipped_loss, only=("update_moves", "toy_reward_rises")),
    Injected("advantages have the wrong sign", ("F5",), _flipped_advantages, only=("toy_reward_rises",)),
    # In few bits it is rounded away, which is F5.
    Injected("a rate that moves nothing", ("A10", "F5"), _config, {"trainer.optim.lr": "1e-8"}, only=("update_moves",)),
    Injected(
        "no optimiser in the checkpoint",
        ("G2",),
        _lost("optimiser", lambda s: torch.optim.AdamW(s.optimiser.masters).state_dict()),
        only=("checkpoint_restores",),
    ),
    Injected(
        "no count of updates in the checkpoint", ("G2",), _lost("updates", lambda s: 0), only=("checkpoint_restores",)
    ),
    Injected("no weights in the checkpoint", ("G2",), _nothing(Learner, "set_weights"), only=("checkpoint_restores",)),
    Injected(
        "no random states in the checkpoint",
        ("G2",),
        _nothing(checkpoints, "set_random_states"),
        only=("checkpoint_restores",),
    ),
    Injected(
        "rewards never differ",
        ("E1", "E2"),
        _rewards(lambda t: {"correct": 1.0}, {"correct": 1.0}),
        env="arith",
        only=SIGNAL,
        control=_FAIR,
    ),
    Injected(
        "45 of 47 rewards are alike",
        ("E9", "E2"),
        _rewards(lambda t: {"correct": float(next(_EPISODES) % 47 not in (22, 45))}, {"correct": 1.0}),
        env="arith",
        only=SIGNAL,
        control=_FAIR,
    ),
    Injected(
        "components cancel",
        ("E4",),
        _rewards(lambda t: {"a": _chance(t), "b": -_chance(t) + 0.05 * _chance(t + "x")}, {"a": 1.0, "b": 1.0}),
        env="arith",
        only=SIGNAL,
        control=_FAIR,
    ),
    Injected(
        "a component never fires",
        ("D19",),
        _rewards(lambda t: {"a": _chance(t), "b": 0.0}, {"a": 1.0, "b": 1.0}),
        env="arith",
        only=SIGNAL,
        control=_FAIR,
    ),
    Injected("every episode is spoilt", ("G9", "E1"), _spoilt, env="arith", only=SIGNAL, control=_FAIR),
    Injected(
        "prompts do not fit the context",
        ("A4",),
        _config,
        {"seq_len": "20", "orchestrator.sampling.max_tokens": "8"},
        only=("replies_fit",),
    ),
]
