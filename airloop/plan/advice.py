"""What to change when a plan does not fit: the mildest keys first, each tried by planning again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from airloop.config import ClusterConfig, Config
from airloop.plan import MemoryPlan, plan
from airloop.plan.shape import Shape

Changes = dict[str, Any]  # dotted keys
Remedy = Callable[[Config], Iterator[Changes]]
WORTH = 0.01  # a change that saves less of the peak is not worth a line
LEAST_RANK = 8
MOST_GPUS = 8


@dataclass(frozen=True)
class Advice:
    changes: Changes
    plan: MemoryPlan  # with these changes; it may still not fit


def advise(config: Config, shape: Shape, gpu_bytes: int) -> Advice:
    """The fewest and mildest changes that make the plan fit; if nothing does, those that come closest."""
    # What is mild may be worth a line only after what is not.
    return _search(config, shape, gpu_bytes, (*MILD, _lora, *MILD, _context))


def advise_gpus(config: Config, shape: Shape, gpu_bytes: int) -> Advice | None:
    """More GPUs of the same kind, which share what does not fit one, and otherwise mild changes. None if that does not
    do."""
    found = _search(config, shape, gpu_bytes, (_kv_tokens, _checkpointing, _token_budget, _gpus, _offload))
    return found if found.plan.fits and found.plan.gpus > config.ranks else None


def _search(config: Config, shape: Shape, gpu_bytes: int, remedies: Sequence[Remedy]) -> Advice:
    chosen: dict[str, Changes] = {}  # by remedy: a stronger value of one takes the place of a milder
    best = plan(config, shape, gpu_bytes)
    for remedy in remedies:
        for option in remedy(apply(config, _merged(chosen)) or config):
            trial = {**chosen, remedy.__name__: option}
            changed = apply(config, _merged(trial))
            if changed is None or best.fits:
                continue
            candidate = plan(changed, shape, gpu_bytes)
            if excess(candidate) < excess(best) - (0 if candidate.fits else WORTH * best.peak):
                chosen, best = trial, candidate
    if best.fits:
        chosen = _without_needless(config, shape, gpu_bytes, chosen)
    changes = _merged(chosen)
    return Advice(changes, plan(apply(config, changes) or config, shape, gpu_bytes))


def excess(made: MemoryPlan) -> int:
    """Bytes too many, of sampling and of training: what helps the smaller of the two helps too."""
    return sum(max(0, peak - made.available) for peak in (made.sampling_peak, made.training_peak))


def _merged(chosen: dict[str, Changes]) -> Changes:
    return {key: value for changes in chosen.values() for key, value in changes.items()}


def apply(config: Config, changes: Changes) -> Config | None:
    """The config with other values, or None if a rule refuses them."""
    tree: dict[str, Any] = config.model_dump(exclude_none=True)
    for key, value in changes.items():
        node = tree
        *sections, leaf = key.split(".")
        for section in sections:
            node = node.setdefault(section, {})
        node[leaf] = value
    conflicts: list[Any] = []
    changed = Config.model_validate(tree, context=conflicts)
    return None if conflicts else changed


def _without_needless(config: Config, shape: Shape, gpu_bytes: int, chosen: dict[str, Changes]) -> dict[str, Changes]:
    """A change may have become needless through a later one; the strongest are tried first."""
    for remedy in reversed(list(chosen)):
        fewer = {name: changes for name, changes in chosen.items() if name != remedy}
        changed = apply(config, _merged(fewer))
        if changed is not None and plan(changed, shape, gpu_bytes).fits:
            chosen = fewer
    return chosen


def _halves(value: int, least: int) -> Iterator[int]:
    while value > least:
        value = max(least, value // 2)
        yield value


# --- remedies, mildest first: each yields values from mild to strong ------------------------------------------------


def _kv_tokens(config: Config) -> Iterator[Changes]:
    if config.inference.kv_tokens:
        for tokens in _halves(config.inference.kv_tokens, config.seq_len):
            yield {"inference.kv_tokens": tokens}


def _checkpointing(config: Config) -> Iterator[Changes]:
    if config.trainer.model.ac is None or config.trainer.model.ac.freq > 1:
        yield {"trainer.model.ac.freq": 1}


def _token_budget(config: Config) -> Iterator[Changes]:
    for tokens in _halves(config.trainer.token_budget, config.seq_len):
        yield {"trainer.token_budget": tokens}


def _offload(config: Config) -> Iterator[Changes]:
    if not config.trainer.optim.offload:
        yield {"trainer.optim.offload": True}


def _rank(config: Config) -> Iterator[Changes]:
    if config.trainer.model.train == "lora" and config.model.adapter is None:
        for rank in _halves(config.trainer.model.lora.rank, LEAST_RANK):
            yield {"trainer.model.lora.rank": rank}


def _gpus(config: Config) -> Iterator[Changes]:
    """An adapter's base can be spread too, while training. What machines have, their owner knows."""
    if config.trainer.model.shard is not False and config.cluster == ClusterConfig():
        for gpus in (n for n in (2, 4, MOST_GPUS) if n > config.ranks):
            both = {"inference_gpu_ids": list(range(gpus))} if config.inference_gpu_ids else {}
            yield {"trainer_gpu_ids": list(range(gpus)), **both}


def _lora(config: Config) -> Iterator[Changes]:
    if config.trainer.model.train == "full":
        yield {"trainer.model.train": "lora"}


def _context(config: Config) -> Iterator[Changes]:
    """Last, because it changes what episodes can be."""
    for length in _halves(config.seq_len, 2 * config.orchestrator.sampling.max_tokens):
        yield {"seq_len": length, "trainer.token_budget": min(config.trainer.token_budget, length)}


MILD: tuple[Remedy, ...] = (_kv_tokens, _checkpointing, _token_budget, _offload, _rank)
