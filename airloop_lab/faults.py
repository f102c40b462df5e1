"""Faults, put in on purpose: what a hypothesis breaks to see what it costs.

Each is a context manager around one run in this process. No config key and no option of `air train` leads here. With a
fault on, exactly the alarms and proofs that would stop the run are silent, and the run says so for good: in its
status.json and at the head of its summary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airloop.errors import AirError

if TYPE_CHECKING:
    import torch

    from airloop.doctor.base import Check
    from airloop.learn.advantages import Batch
    from airloop.learn.batches import PackedPlan
    from airloop.policy import Policy
    from airloop.runs.run import Run
    from airloop.types import Group, Trajectory
    from airloop.watch.alarms.rules import Rule


@dataclass(frozen=True)
class Fault:
    name: str
    text: str  # what is broken
    put_in: Callable[[], AbstractContextManager[None]]
    alarms: frozenset[str]  # names of the watches that would stop the run
    checks: frozenset[str]  # names of the doctor's probes and proofs that would

    @property
    def banner(self) -> str:
        return f"FAULT ON PURPOSE ({self.name}): {self.text}. This run is no healthy one."

    def record(self) -> dict[str, Any]:
        return {"name": self.name, "text": self.text, "silenced": sorted(self.alarms | self.checks)}


def find_fault(name: str) -> Fault:
    if name not in FAULTS:
        raise AirError(f"There is no fault {name!r}.", f"known: {', '.join(FAULTS)}.")
    return FAULTS[name]


@contextmanager
def fault_on(name: str) -> Iterator[Fault]:
    """Runs that are started inside have the fault, and say so."""
    fault = find_fault(name)
    with fault.put_in(), _silenced(fault), _recorded(fault):
        yield fault


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def _silenced(fault: Fault) -> Iterator[None]:
    from airloop.doctor import examine
    from airloop.watch.alarms import monitor as alarms

    all_rules, all_checks = alarms.rules, examine.checks

    def rules() -> list[Rule]:
        return [rule for rule in all_rules() if rule.name not in fault.alarms]

    def checks(only: Sequence[str] = ()) -> list[Check]:
        return [check for check in all_checks(only) if check.name not in fault.checks]

    with replaced(alarms, "rules", rules), replaced(examine, "checks", checks):
        yield


@contextmanager
def _recorded(fault: Fault) -> Iterator[None]:
    """Every note that a run takes of itself says it, the first of which is taken before anything is sampled."""
    from airloop import training as train
    from airloop.runs.run import Run

    note, summary = Run.note, train.summary

    def noting(self: Run, **facts: Any) -> None:
        note(self, **{**facts, "fault": fault.record()})

    def said(*args: Any, **kwargs: Any) -> str:
        return f"{fault.banner}\n{summary(*args, **kwargs)}"

    def not_refused(run: Run) -> None: ...

    with (
        replaced(Run, "note", noting),
        replaced(train, "summary", said),
        replaced(train, "refuse_faulty", not_refused),
    ):
        yield


# --- mask -------------------------------------------------------------------------------------------------------------


@contextmanager
def blindfold() -> Iterator[None]:
    """The loss mask is fed to the model as its attention mask (F1): the training forward sees neither the prompt nor
    any tool result. The sampler sees everything, as ever."""
    import torch

    from airloop.learn.batches import PackedPlan

    original = PackedPlan.__init__

    def blind(self: PackedPlan, batch: Any, device: torch.device) -> None:
        original(self, batch, device)
        self._tree = None  # flash kernels know no such mask
        masks = [self._mask(segment, device) for segment in batch.segments]
        trained = torch.zeros(len(self.tokens), dtype=torch.bool, device=device)
        for r, row in enumerate(batch.rows):
            flat = [batch.segments[s].start + i for s in batch.paths[r] for i in range(len(batch.segments[s].tokens))]
            trained[[f for f, t in zip(flat, row.train, strict=True) if t]] = True
        for i, segment in enumerate(batch.segments):
            path = (*segment.ancestors, i)
            seen = torch.cat([trained[batch.segments[s].start :][: len(batch.segments[s].tokens)] for s in path])
            itself = torch.eye(masks[i].shape[1], dtype=torch.bool, device=device)[segment.place :]
            masks[i] = (masks[i] & seen[None]) | itself  # a token always sees itself, or softmax is NaN
        self._masks = masks

    with replaced(PackedPlan, "__init__", blind):
        yield


# --- sync -------------------------------------------------------------------------------------------------------------


@contextmanager
def cut_off_engine() -> Iterator[None]:
    """The engine samples from a copy of the policy that was made before the first step and never follows it (F2). It
    goes on counting versions, so it claims to serve what it does not: that is how it stayed unseen for weeks."""
    from airloop.engine.embedded.engine import EmbeddedEngine

    original = EmbeddedEngine.__init__

    def stale(self: EmbeddedEngine, policy: Policy, **options: Any) -> None:
        original(self, frozen_copy(policy), **options)

    with replaced(EmbeddedEngine, "__init__", stale):
        yield


def frozen_copy(policy: Policy) -> Policy:
    from airloop.models.head import logits_head
    from airloop.policy import Policy

    model = copy.deepcopy(policy.model).requires_grad_(False)
    made = Policy(model, logits_head(model), None, policy.impl)
    made.version = policy.version
    return made


# --- cut --------------------------------------------------------------------------------------------------------------


@contextmanager
def cut_replies_left_out() -> Iterator[None]:
    """Episodes with a reply that was cut at max_tokens are scored, and count in their group's mean, but teach nothing:
    what some trainers offer as masking truncated completions."""
    from airloop import step
    from airloop.learn.advantages import Batch, trajectory_of

    original = step.assign_advantages

    def leaving_out(groups: Sequence[Group], **settings: Any) -> Batch:
        batch = original(groups, **settings)
        cut = {t.id for g in groups for t in g.trajectories if was_cut(t)}
        rows = tuple(row for row in batch.rows if trajectory_of(row) not in cut)
        advantages = {id: 0.0 if id in cut else value for id, value in batch.advantages.items()}
        return Batch(rows, advantages, batch.trajectories)

    with replaced(step, "assign_advantages", leaving_out):
        yield


def was_cut(trajectory: Trajectory) -> bool:
    return any(turn.sampled is not None and turn.sampled.stop == "length" for turn in trajectory.turns)


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(
            "mask",
            "the loss mask is fed to the model as its attention mask: training sees neither prompts nor tool results",
            blindfold,
            alarms=frozenset({"engine_serves_another_policy"}),
            checks=frozenset(
                {"context_is_seen", "trainer_agrees", "adapter_arrives", "update_moves", "toy_reward_rises"}
            ),
        ),
        Fault(
            "sync",
            "what is trained never reaches the engine, which goes on sampling from the policy of step 0",
            cut_off_engine,
            alarms=frozenset({"engine_serves_another_policy"}),
            checks=frozenset({"adapter_arrives", "update_moves", "toy_reward_rises"}),
        ),
        Fault(
            "cut",
            "episodes with a reply that was cut at max_tokens are left out of the loss",
            cut_replies_left_out,
            alarms=frozenset(),  # nothing would stop it: it learns from what is left
            checks=frozenset(),
        ),
    )
}
