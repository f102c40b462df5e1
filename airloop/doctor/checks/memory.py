"""Family C, fast: GPUs, who uses them, and whether the run fits. Nothing is loaded and no CUDA context is made."""

from __future__ import annotations

from typing import Any

from airloop.config import with_changes
from airloop.doctor.base import Finding, check, passed
from airloop.doctor.case import Case

GIB = 2**30
# A process that holds more than this of a GPU works on it: both become slower, and what it takes later is not ours.
# Below, it is a desktop or a monitor.
SHARE_OF_OTHERS = 0.10
LEAST_BUDGET = 512  # tokens of a micro-batch: with fewer, a CPU computes no faster than token by token


@check("C-device", stage="fast", title="the devices named are there")
def devices_are_there(case: Case) -> Finding:
    config = case.config
    if config.model.device != "cuda" and not (config.gpus and config.model.device == "auto"):
        return passed(f'device = "{config.model.device}", no GPU named')
    if case.gpu_memory is not None:
        return passed("planned for another machine")
    import torch

    count, named = torch.cuda.device_count(), config.gpus or list(range(config.ranks_per_node))
    if count and max(named) < count:
        return passed(f"GPU {', '.join(map(str, named))} of {count}")
    lines = {"trainer_gpu_ids": list(range(min(count, len(named))))} if count else {"model.device": "cpu"}
    return Finding(
        "fail",
        f'device = "{config.model.device}" and GPUs {named} are asked for, and torch sees {count} CUDA devices',
        "the model could not be loaded where the config says",
        "name what is there" + ("" if count else ", and delete trainer_gpu_ids and inference_gpu_ids if given"),
        lines,
    )


@check("C4", stage="fast", title="nobody else holds the GPUs")
def gpus_are_free(case: Case) -> list[Finding]:
    """Names pid, user and memory. Ending a process is for its owner: nothing here ever does."""
    from airloop.plan import plan

    if not case.gpus:
        return [passed("no GPU is used, or nvidia-smi shows none")]
    found = []
    for gpu in case.gpus:
        held = "; ".join(map(str, gpu.holders)) or "no process is shown: it may be in another container"
        seen = f"GPU {gpu.index} ({gpu.name}): {gpu.used / GIB:.1f} of {gpu.total / GIB:.1f} GiB are in use: {held}"
        narrow = not plan(case.config, case.shape, gpu.free).fits and plan(case.config, case.shape, gpu.total).fits
        if narrow or gpu.used > SHARE_OF_OTHERS * gpu.total:
            found.append(
                Finding(
                    "fail" if narrow else "warn",
                    seen,
                    f"the run would fit the empty GPU, but not into the {gpu.free / GIB:.1f} GiB that are free"
                    if narrow
                    else "what is free is enough now; work on the same GPU makes both slower, and may take more later",
                    "ask the owner, wait until it has ended, or name another GPU",
                    {"trainer_gpu_ids": _other_gpus(case)} if _other_gpus(case) else {},
                )
            )
    return found or [passed(", ".join(f"GPU {gpu.index}: {gpu.free / GIB:.1f} GiB free" for gpu in case.gpus))]


def _other_gpus(case: Case) -> list[int]:
    """As many that are free, if there are."""
    from airloop.doctor.gpus import listed

    free = [gpu.index for gpu in listed() if gpu.used <= SHARE_OF_OTHERS * gpu.total]
    return free[: len(case.gpus)] if len(free) >= len(case.gpus) else []


@check("C1", "C2", "C5", stage="fast", title="the memory plan fits")
def memory_fits(case: Case) -> Finding:
    """What each part takes at each moment, planned from config.json; `air plan` prints all of it."""
    from airloop.plan import plan
    from airloop.plan.report import TITLES, make_report

    size = case.gpu_memory or min((gpu.total for gpu in case.gpus), default=None)
    if size is None:
        return passed("no GPU to plan for (--gpu-memory 80GiB plans for another machine)")
    made = plan(case.config, case.shape, size)
    part, largest = made.largest
    seen = (
        f"{made.peak / GIB:.1f} GiB at the peak ({TITLES[made.moment]}), {made.available / GIB:.1f} GiB available; the "
        f"largest part is {part.replace('_', ' ')}, {largest / GIB:.1f} GiB"
    )
    report = make_report(case.config, case.shape, size)
    if made.fits and (lack := _lacks_host_memory(case)):
        return lack
    if made.fits and not report["fits"]:
        return _server_is_narrow(report)
    if made.fits:
        return passed(seen, report["text"])
    return _does_not_fit(case, seen, report, sampling=made.sampling_peak > made.available)


def _server_is_narrow(report: dict[str, Any]) -> Finding:
    """A warning: it is vLLM that knows, and says so when it starts."""
    server = report["servers"]
    return Finding(
        "warn",
        f"a server of vLLM has {server['weights'] / GIB:.1f} GiB of weights in {server['share'] / GIB:.1f} GiB, and "
        f"room for about {server['kv_tokens']:,} tokens, where an episode may have {server['context']:,}",
        "vLLM does not start where an episode of full length does not fit",
        "raise inference.gpu_memory_utilization, lower seq_len, or choose a smaller model or a larger GPU.",
        ids=("C1",),
        detail=report["text"],
    )


def _lacks_host_memory(case: Case) -> Finding | None:
    """Of this machine, for what offload puts there: who takes more is ended by the kernel, without a word."""
    from airloop.plan.memory import host_bytes, read_sizes
    from airloop.watch.metrics.facts import MIB, available_mib

    needed = host_bytes(read_sizes(case.config, case.shape, case.config.ranks)) // case.config.learner_nodes
    if case.gpu_memory or not needed or (there := available_mib() * MIB) >= needed:
        return None
    return Finding(
        "warn",
        f"trainer.optim.offload puts {needed / GIB:.1f} GiB into the machine's memory, and {there / GIB:.1f} GiB are "
        "available",
        "float32 masters, both moments of AdamW and the sums of gradients are kept there",
        'trainer.model.train = "lora" trains few weights; or take a machine with more memory.',
        ids=("C5",),
    )


@check("C2", stage="fast", title="an update fits the machine's memory")
def cpu_memory_suffices(case: Case) -> Finding:
    """Without a GPU: what a backward pass holds at least, weights and activations of the largest micro-batch, against
    what is available. A floor: whoever needs less than this there is none of."""
    from airloop.watch.metrics.facts import MIB, available_mib

    if case.gpus or case.gpu_memory or case.config.gpus or case.config.model.device not in ("auto", "cpu"):
        return passed("the model is on GPUs")
    try:
        there, budget = available_mib() * MIB, case.config.trainer.token_budget
    except OSError:  # not Linux
        return passed("how much memory is available is not known here")
    needed, wide = _cpu_floor(case, budget, "bfloat16"), _cpu_floor(case, budget, "float32")
    dtype = "bfloat16"
    if needed <= there < wide and _computes_in_fp32(case):  # asked only where it decides
        needed, dtype = wide, "float32"
    seen = f"a backward pass of {budget} tokens takes {needed / GIB:.1f} GiB, and {there / GIB:.1f} GiB are available"
    if needed <= there:
        return passed(seen)
    smaller = budget
    while smaller // 2 >= LEAST_BUDGET and _cpu_floor(case, smaller, dtype) > there:
        smaller //= 2
    fits = _cpu_floor(case, smaller, dtype) <= there
    return Finding(
        "warn",
        seen,
        "who takes more memory than there is is ended by the kernel, without a word, or swaps for hours",
        "train fewer tokens at a time: the update is the same" if fits else "lower seq_len, or choose a smaller model",
        {"trainer.token_budget": smaller} if fits else {},
        ids=("C2",),
    )


def _cpu_floor(case: Case, tokens: int, dtype: str) -> int:
    from airloop.plan.memory import cpu_floor

    asked = case.config.model.dtype
    changes = {"trainer.token_budget": tokens, "model.dtype": dtype if asked == "auto" else asked}
    return cpu_floor(with_changes(case.config, changes), case.shape)


def _computes_in_fp32(case: Case) -> bool:
    from airloop.models.dtypes import multiplies_bf16

    return case.config.model.dtype == "auto" and not multiplies_bf16()


def _does_not_fit(case: Case, seen: str, report: dict[str, Any], sampling: bool) -> Finding:
    advice, full = report["advice"], case.config.trainer.model.train == "full"
    id, why = (
        ("C5", "every trained weight needs its gradient, a float32 master and two moments of AdamW beside it")
        if full
        else ("C1", "the sampler's keys and values would take what the weights leave, and more")
        if sampling
        else ("C2", "the backward pass keeps every block's activations, and the optimiser its own copies")
    )
    fix = "this fits" if advice["fits"] else "no key alone makes it fit; closest comes"
    if more := report.get("more_gpus"):
        others = {key: value for key, value in more["changes"].items() if not key.endswith("gpu_ids")}
        how = "with " + ", ".join(f"{key} = {value}" for key, value in others.items()) if others else "as it is"
        fix = f"on {len(more['changes']['trainer_gpu_ids'])} such GPUs it is sharded and fits {how}; on these, {fix}"
    if (offload := "trainer.optim.offload") in advice["changes"]:
        from airloop.plan.memory import host_bytes, read_sizes

        needed = host_bytes(read_sizes(with_changes(case.config, {offload: True}), case.shape, case.config.ranks))
        needed //= case.config.learner_nodes
        fix += f", with {needed / GIB:.0f} GiB of the machine's own memory"
    if not advice["changes"]:
        fix = "choose a smaller model or a larger GPU"
    return Finding("fail", seen, why, fix, advice["changes"], ids=(id,), detail=report["text"])
