"""`air train --dry-run`: a run of the same parts, small, on this machine's CPU, before the GPUs are rented.

The same processes train it, servers sample for it where they would, and its environments, tools and sandboxes, its loss
and its settings are its own. Other is what costs: a tiny model of random weights in place of the model, two steps of a
few short episodes. What such a model earns says nothing; that every part works with every other does.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airloop.config import BudgetConfig, ClusterConfig, Config, LogbookConfig, with_changes
from airloop.config.schema import VllmConfig
from airloop.models.tiny import save_tiny
from airloop.sinks import SINKS
from airloop.text.figures import duration
from airloop.training import start
from airloop.watch.display.display import Display

STEPS, GROUP, TASKS = 2, 2, 2
REPLY = 24  # tokens, each a byte
CONTEXT = 32768  # a prompt has a few thousand words at most, and the tiny model reads it by bytes
SEQUENCES = 4  # of that length, for which an engine has room
HIDDEN = 128  # heads of 32 numbers: smaller ones are none of vLLM's
# Where no episode earns more than another nothing would be learned from: by this term every token counts.
ENTROPY = 1e-3


@dataclass(frozen=True)
class Tried:
    text: str
    facts: dict[str, Any]


def dry_run(config: Config, display: Display) -> Tried:
    """AirError where a part does not work; what the run left is then kept, and its place is said."""
    place, began = Path(tempfile.mkdtemp(prefix="air-dry-")), time.monotonic()
    tiny = save_tiny(place / "model", hidden=HIDDEN, context=CONTEXT)
    small = shrunk(config, tiny, place)
    display.say(
        f"dry run: {_what(small)}, with a tiny model in place of {config.model.name}: "
        "what that earns, and alarms about it, mean nothing"
    )
    try:
        run = start(small, display, skip_proofs=True).run
    except BaseException:
        display.say(f"dry run: what it left is in {place}")
        raise
    lines = run.metrics("train")
    facts = {
        "steps": len(lines),
        "episodes": sum(line["rollout"]["episodes"] for line in lines),
        "tokens_trained": sum(line["learner"]["tokens_trained"] for line in lines),
        "infra_errors": sum(line["rollout"]["infra_errors"] for line in lines),
        "processes": small.ranks,
        "backend": small.inference.backend,
        "seconds": round(time.monotonic() - began, 1),
    }
    shutil.rmtree(place)
    return Tried(_told(config, small, facts), facts)


def shrunk(config: Config, model: Path, place: Path) -> Config:
    """The run as it is, but for what costs and what others would see of it."""
    o, lora = config.orchestrator, config.trainer.model.lora
    changes: dict[str, Any] = {
        "max_steps": STEPS,
        "output_dir": str(place / "runs"),
        "seq_len": CONTEXT,
        "trainer_gpu_ids": None,
        "inference_gpu_ids": None,
        "cluster": ClusterConfig(),
        "budget": BudgetConfig(),
        **dict.fromkeys(SINKS),
        "logbook": LogbookConfig(),
        "model": type(config.model)(name=str(model), device="cpu", dtype="float32"),
        "ckpt.interval": 1,
        "trainer.processes": config.ranks,
        # Which layers it has is the model's own affair.
        "trainer.model.lora": type(lora)(rank=lora.rank, alpha=lora.alpha),
        "trainer.loss.entropy_beta": config.trainer.loss.entropy_beta or ENTROPY,
        "orchestrator.env": [env.model_copy(update={"args": _without_gpus(env.args)}) for env in o.env],
        "orchestrator.rollouts_per_example": GROUP,
        "orchestrator.batch_size": GROUP * max(2, config.ranks),
        "orchestrator.sampling.max_tokens": min(o.sampling.max_tokens, REPLY),
        "orchestrator.eval.num_examples": TASKS,
        "orchestrator.eval.rollouts_per_example": 1,
        "orchestrator.eval.interval": min(o.eval.interval, 1),
        "inference.gpu_memory_utilization": None,
        "inference.kv_tokens": SEQUENCES * CONTEXT if config.inference.own_weights else None,
        # servers elsewhere have the model itself
        "inference.vllm": VllmConfig(python=config.inference.vllm.python, adapters=config.inference.vllm.adapters),
    }
    if config.warmstart is not None:
        changes |= {"warmstart.steps": 1, "warmstart.batch_size": GROUP, "warmstart.episodes": GROUP}
    return with_changes(config, changes)


def _without_gpus(args: dict[str, Any]) -> dict[str, Any]:
    """An environment's own: what agents run there runs on the CPU, as all else does."""
    return {key: value for key, value in args.items() if key != "env_gpu"}


def _what(small: Config) -> str:
    ranks = "1 process trains" if small.ranks == 1 else f"{small.ranks} processes train"
    served = ", a server of vLLM samples" if small.inference.backend == "vllm" else ""
    return f"{ranks}{served}, on this machine's CPU"


def _machines(config: Config) -> str:
    if config.cluster.nodes == 1:
        return ""
    roles = f" ({config.sampler_nodes} of them only to sample)" if config.sampler_nodes else ""
    return f"the {config.cluster.nodes} machines{roles} and what is between them, "


def _told(config: Config, small: Config, facts: dict[str, Any]) -> str:
    lost = f", {facts['infra_errors']} of them at first spoilt by the machinery" if facts["infra_errors"] else ""
    return (
        f"dry run: {facts['steps']} steps with {facts['episodes']} episodes of {small.task}{lost} and "
        f"{facts['tokens_trained']:,.0f} tokens trained, in {duration(facts['seconds'])}: "
        "every part works with every other.\n"
        f"Not tried: {config.model.name}, {_machines(config)}GPUs and their memory (`air plan`), and whether it learns "
        "(`air doctor`)."
    )
