"""A plan for people and for machines."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from airloop.config import Config
from airloop.config.mistakes import correction
from airloop.plan import MOMENTS, Memory, MemoryPlan, Shape, plan
from airloop.plan.advice import Advice, advise, advise_gpus
from airloop.plan.memory import SLACK
from airloop.plan.servers import ServerPlan, plan_servers

GIB = 1 << 30
TITLES = {"sampling": "sampling", "log_probs": "log-probs", "backward": "backward", "update": "update"}


def make_report(config: Config, shape: Shape, gpu_bytes: int) -> dict[str, Any]:
    made = plan(config, shape, gpu_bytes)
    advice = None if made.fits else advise(config, shape, gpu_bytes)
    report = {"model": config.model.name, "parameters": shape.parameters, **made.as_json()}
    more_gpus = None if made.fits else advise_gpus(config, shape, gpu_bytes)
    for name, found in (("advice", advice), ("more_gpus", more_gpus)):
        if found is not None:
            report[name] = {"changes": found.changes, "fits": found.plan.fits, "peak": found.plan.peak}
    servers = plan_servers(config, shape, gpu_bytes)
    lines = [_head(config, shape, made), "", *_table(made), "", *_about(config, made), _verdict(made)]
    if advice is not None:
        lines += _advised(advice, more_gpus)
    if servers is not None:
        report |= {"servers": {**asdict(servers), "fits": servers.fits}, "fits": made.fits and servers.fits}
        lines += _served(servers)
    return {**report, "text": "\n".join(lines)}


def _head(config: Config, shape: Shape, made: MemoryPlan) -> str:
    lora = config.trainer.model.lora
    how = "all weights trained" if config.trainer.model.train == "full" else f"LoRA of rank {lora.rank}"
    gpus = f"{made.gpus} GPU{'s' if made.gpus > 1 else ''} of {gib(made.gpu_bytes)} GiB"
    if config.cluster.nodes > 1:
        gpus += f", of {_machines(config.learner_nodes, 'train')}"
    return f"{config.model.name} ({_count(shape.parameters)}), {how}, on {gpus}"


def _table(made: MemoryPlan) -> list[str]:
    moments = [getattr(made, name) for name in MOMENTS]
    lines = ["GiB per GPU     " + "".join(f"{TITLES[name]:>11s}" for name in MOMENTS)]
    for field in fields(Memory):
        sizes = [getattr(moment, field.name) for moment in moments]
        if any(sizes):
            name = field.name.replace("key_values", "keys and values")
            lines.append(f"{name:16s}" + "".join(f"{gib(size) if size else '–':>11s}" for size in sizes))
    return [*lines, f"{'together':16s}" + "".join(f"{gib(moment.total):>11s}" for moment in moments)]


def _about(config: Config, made: MemoryPlan) -> list[str]:
    stays = "kept while training" if made.keep_kv else "given back before training and taken again after"
    embedded = config.inference.own_weights
    lines = [
        *([f"Keys and values: room for {made.kv_tokens:,} tokens, {stays}."] if embedded else []),
        f"Largest micro-batch: {made.tokens:,} tokens.",
        f"CUDA context and graphs, which torch's figures leave out: {gib(made.outside)} GiB.",
    ]
    if made.gpus > 1 and config.trainer.model.train == "full":
        lines.append("While sampling, every GPU holds all the weights besides its share of them.")
    if made.base_shards:
        embedded_too = ", and whole while it samples" if embedded else ", and whole between updates"
        lines.append(f"The frozen base is in {made.gpus} shards while training{embedded_too}.")
        if config.warmstart is not None:
            lines.append("The supervised start is the first GPU's alone, with all of the base: not in this plan.")
    if config.model.device == "cpu":
        lines.append('The config says model.device = "cpu"; this is the plan for a GPU.')
    return lines


def _served(servers: ServerPlan) -> list[str]:
    """Beside what trains."""
    what = f"{servers.gpus} servers of vLLM, each" if servers.gpus > 1 else "A server of vLLM,"
    if servers.nodes:
        what = f"On {_machines(servers.nodes, 'only sample')}, {what[0].lower()}{what[1:]}"
    room = f"room for about {servers.kv_tokens:,} tokens of keys and values"
    lines = [
        f"{what} on a GPU of its own: {gib(servers.share)} GiB of it, with {gib(servers.weights)} GiB of weights "
        f"and {room}, {servers.kv_tokens / servers.context:.1f} episodes of full length."
    ]
    if not servers.fits:
        lines.append(
            f"It does not fit there: an episode may have {servers.context:,} tokens. Raise "
            "inference.gpu_memory_utilization, lower seq_len, or choose a smaller model or a larger GPU."
        )
    return lines


def _verdict(made: MemoryPlan) -> str:
    part, size = made.largest
    where = f"{gib(made.peak)} GiB at the peak ({TITLES[made.moment]}), {gib(made.available)} GiB available"
    largest = f"the largest part is {part.replace('key_values', 'keys and values')}, {gib(size)} GiB"
    return f"{'It fits' if made.fits else 'It does not fit'}: {where}; {largest}."


def _advised(advice: Advice, more_gpus: Advice | None) -> list[str]:
    lines = []
    if advice.plan.fits:
        lines.append(f"To make it fit ({gib(advice.plan.peak)} GiB), {correction(advice.changes, as_flags=False)}")
    elif advice.changes:
        lines.append(f"Closest ({gib(advice.plan.peak)} GiB): {correction(advice.changes, as_flags=False)}")
    if more_gpus is not None:
        fix = correction(more_gpus.changes, as_flags=False)
        lines.append(f"Or, on {more_gpus.plan.gpus} such GPUs ({gib(more_gpus.plan.peak)} GiB), {fix}")
    return lines if advice.plan.fits or more_gpus else [*lines, _too_large(advice.plan)]


def _too_large(made: MemoryPlan) -> str:
    needed = made.peak + made.outside
    return (
        f"No key makes it fit: choose a smaller model.name, or a GPU of {gib(int(needed / (1 - SLACK)))} GiB or more."
    )


def _machines(count: int, do: str) -> str:
    return f"one machine that {do}s" if count == 1 else f"{count} machines that {do}"


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.3g}B" if parameters >= 1e8 else f"{parameters / 1e6:.3g}M"


def gib(size: int) -> str:
    return f"{size / GIB:.2f}" if size < 10 * GIB else f"{size / GIB:.1f}"
