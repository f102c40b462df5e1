"""What backend = "vllm" excludes, each with its reason and its correction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from airloop.config.conflict import Conflict
from airloop.config.schema import VllmConfig

if TYPE_CHECKING:
    from airloop.config.schema import RunConfig

BACKEND = "inference.backend"
HOTTEST = 2.0  # vLLM refuses higher temperatures
EVERYWHERE = ("0.0.0.0", "::")
ON_GPUS = (
    'train = "full" with backend = "vllm" is for CPUs in this version: on GPUs servers get the policy as an adapter, '
    "and the whole weights would have to go over NCCL."
)
MEMORY = 0.9  # of a GPU that does nothing else
SERVED = 2  # adapters at once: the newest, and the one that replies under way were begun with


def vllm_conflicts(config: RunConfig) -> Iterator[Conflict]:
    if config.inference.backend != "vllm":
        if config.inference.vllm != VllmConfig():
            yield Conflict(
                ("inference.vllm", BACKEND),
                f'[inference.vllm] has no effect with backend = "{config.inference.backend}"',
                {BACKEND: "vllm"},
            )
        return
    yield from _weights(config)
    yield from _places(config)
    sampling = config.orchestrator.sampling
    for part in ("sampling", "eval"):
        if (heat := getattr(config.orchestrator, part).temperature) > HOTTEST:
            yield Conflict(
                (f"orchestrator.{part}.temperature", BACKEND),
                f"temperature = {heat:g}, and vLLM samples at {HOTTEST:g} at most",
                {f"orchestrator.{part}.temperature": HOTTEST},
            )
    for key, off in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
        if getattr(sampling, key) != off:
            yield Conflict(
                (f"orchestrator.sampling.{key}", BACKEND),
                f"{key} = {getattr(sampling, key)} cuts the distribution, and vLLM then gives log-probs of what is "
                "left, not of the policy that is trained",
                {f"orchestrator.sampling.{key}": off},
            )

    yield from _unused(config)


def _unused(config: RunConfig) -> Iterator[Conflict]:
    """What servers do not hear of."""
    inference, urls = config.inference, config.inference.vllm.urls
    said = {
        "inference.kv_tokens": inference.kv_tokens is not None,
        "inference.page_size": inference.page_size != type(inference).model_fields["page_size"].default,
        "inference.gpu_memory_utilization": bool(urls) and inference.gpu_memory_utilization is not None,
        "inference.vllm.python": bool(urls) and inference.vllm.python is not None,
        "inference.model.enforce_eager": bool(urls) and inference.model.enforce_eager is not None,
        "inference_gpu_ids": bool(urls) and config.inference_gpu_ids is not None,
    }
    if not urls and inference.vllm.api_key_env != VllmConfig.model_fields["api_key_env"].default:
        yield Conflict(
            ("inference.vllm.api_key_env", "inference.vllm.urls"),
            "inference.vllm.api_key_env is for servers that run already, by inference.vllm.urls: those that the run "
            "starts get a new key: leave it out",
            {},
        )
    pulled = inference.vllm.adapters == "http"
    for key in ("adapters_host", "adapters_port"):
        if not pulled and getattr(inference.vllm, key) != VllmConfig.model_fields[key].default:
            yield Conflict(
                (f"inference.vllm.{key}", "inference.vllm.adapters"),
                f'inference.vllm.{key} has no effect with adapters = "files"',
                {"inference.vllm.adapters": "http"},
            )
    if pulled and inference.vllm.adapters_host.strip("[]") in EVERYWHERE:
        yield Conflict(
            ("inference.vllm.adapters_host",),
            f"inference.vllm.adapters_host = {inference.vllm.adapters_host!r} is where to listen, and no address that "
            "a server reaches: name the one of this machine that it does",
            {},
        )
    for key in (key for key, given in said.items() if given):
        where = "inference.vllm.urls, whose servers run already" if urls else 'backend = "vllm"'
        yield Conflict((key, BACKEND), f"{key} has no effect with {where}: leave it out", {})


def _weights(config: RunConfig) -> Iterator[Conflict]:
    if config.trainer.model.train == "full":
        yield from _all_weights(config)
    if config.deterministic:
        yield Conflict(
            ("deterministic", BACKEND),
            "deterministic = true promises the same run bit for bit, and a server's batches follow from the clock",
            {"deterministic": False},
        )


def _all_weights(config: RunConfig) -> Iterator[Conflict]:
    """What goes with adapters only."""
    key, staleness = "trainer.model.train", config.orchestrator.max_staleness
    if config.cluster.roles is not None:
        yield Conflict(
            (key, "cluster.roles"),
            'train = "full" with samplers on machines of their own is not in this version: the routes by which whole '
            "weights are exchanged ask for no key, and weights are read from files",
            {key: "lora"},
        )
        return
    if config.model.device != "cpu" and (config.trainer_gpu_ids or config.inference_gpu_ids):
        yield Conflict((key, BACKEND), ON_GPUS.rstrip("."), {key: "lora"})
    elif config.ranks > 1:
        yield Conflict(
            (key, "trainer.processes", BACKEND),
            f'train = "full" on {config.ranks} processes with backend = "vllm" is not in this version: each has a '
            "shard of the weights, and servers get them whole",
            {key: "lora"},
        )
    if config.inference.vllm.urls or config.inference.vllm.adapters == "http":
        yield Conflict(
            (key, "inference.vllm.urls" if config.inference.vllm.urls else "inference.vllm.adapters"),
            'train = "full" is for servers that this run starts: the routes by which weights are exchanged ask for no '
            "key, and weights are read from files",
            {key: "lora"},
        )
    if staleness:
        yield Conflict(
            (key, "orchestrator.max_staleness"),
            f'train = "full" with servers of vLLM and max_staleness = {staleness} is not in this version: weights come '
            "in the place of those that replies under way were begun with",
            {"orchestrator.max_staleness": 0},
        )


def _places(config: RunConfig) -> Iterator[Conflict]:
    trainer, inference = config.trainer_gpu_ids, config.inference_gpu_ids
    if config.inference.vllm.urls or config.model.device == "cpu" or config.cluster.roles is not None:
        return
    if inference is None and trainer is not None:
        yield Conflict(
            ("inference_gpu_ids", BACKEND),
            'backend = "vllm" starts a server on each of inference_gpu_ids, and none is named',
            {"inference_gpu_ids": [max(trainer) + 1]},
        )
    elif set(trainer or [0]) & set(inference or []):
        yield Conflict(
            ("inference_gpu_ids", "trainer_gpu_ids", BACKEND),
            f"inference_gpu_ids = {inference} and trainer_gpu_ids = {trainer or [0]} share a GPU, and a server of vLLM "
            'takes all of one; on the trainer\'s own GPU, backend = "embedded" samples without a copy of the weights',
            {BACKEND: "embedded"},
        )
