"""Find, check and load a model: `load(name)` gives the model, its tokenizer, and what the user should know.

A name is a directory, a GGUF file, a hub id, or `tiny:llama` (random weights, for tests). Everything that
can be refused is refused from the small files, before the large ones are read; see checks.py.
Torch and transformers take seconds to import, so they are imported inside functions.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airloop.errors import AirError
from airloop.files import read_object
from airloop.models.chat import ChatTokenizer
from airloop.models.checks import check_config, check_context, check_weights, read_config
from airloop.models.head import check_head, logits_head, one_thread
from airloop.models.sources import (
    DEFAULT_MODEL,
    ModelFiles,
    cache_directory,
    cached_conversions,
    cached_snapshots,
    find_config,
    locate,
    small_files,
)

if TYPE_CHECKING:
    import torch

__all__ = [
    "DEFAULT_MODEL",
    "ChatTokenizer",
    "Loaded",
    "ModelFiles",
    "ModelRow",
    "cache_directory",
    "check_config",
    "check_context",
    "check_head",
    "check_tokenizer",
    "check_weights",
    "find_config",
    "list_models",
    "load",
    "load_tokenizer",
    "locate",
    "logits_head",
]

Say = Callable[[str], None]
DTYPES = ("auto", "float32", "bfloat16", "float16")
# fp32 is the more exact; bf16 has to be faster by more than timing noise to be chosen on a CPU.
BF16_MARGIN = 1.25


@dataclass
class Loaded:
    """A model in eval mode on its device, without key/value cache, and the tokenizer that fits it."""

    model: Any  # a transformers PreTrainedModel
    tokenizer: ChatTokenizer
    name: str
    path: Path | None  # None: made in memory
    dtype: torch.dtype
    device: torch.device
    notes: list[str] = field(default_factory=list)


def load(
    name: str = DEFAULT_MODEL,
    *,
    device: str = "auto",
    dtype: str = "auto",
    chat_template: str | Path | None = None,
    say: Say | None = None,
) -> Loaded:
    """Finds, checks and loads a model for causal language modelling."""
    import torch

    from airloop.models.wide_products import are_slow, widen_products

    if dtype not in DTYPES:
        raise AirError(f"there is no dtype {dtype!r} here", f"use one of {', '.join(DTYPES)}")
    target = _device(device)
    if name.startswith("tiny:"):
        return _load_tiny(name, target, dtype, chat_template)

    files = locate(name, say=say)
    config_json = read_config(files.path, name)
    check_config(config_json, name)
    check_weights(files.path, name)
    with quiet():
        config = _config(files.path, name)
        tokenizer = _tokenizer(files.path, name, config, chat_template)
        check_tokenizer(config, tokenizer)
        chosen, why = _choose_dtype(dtype, target, config)
        model = _model(files.path, name, getattr(torch, chosen), target)
    if not model._supports_attention_backend:
        raise AirError(
            f"{name} ({config.model_type}) computes attention in its own code, "
            "which the engine cannot replace with its paged attention",
            "choose a plain transformer, for example Qwen/Qwen3-4B-Instruct-2507",
        )
    if are_slow(model):  # not to be switched off here: another model may be in use
        widen_products(True)
    check_head(model)
    notes = [*files.notes, *([why] if why else []), *tokenizer.notes]
    return Loaded(model, tokenizer, name, files.path, getattr(torch, chosen), target, notes)


def load_tokenizer(name: str, *, chat_template: str | Path | None = None, say: Say | None = None) -> ChatTokenizer:
    """The tokenizer that `load` would give, checked against the model's config.json; no weights are read or, from the
    hub, fetched."""
    if name.startswith("tiny:"):
        from airloop.models.tiny import tiny_tokenizer

        return ChatTokenizer(tiny_tokenizer(), name=name, chat_template=chat_template)
    path = small_files(name, say=say)
    settings = read_config(path, name)
    check_config(settings, name)
    with quiet():
        # The file says all that is asked of it here, and reading it needs no torch; what it leaves out, transformers
        # knows.
        whole = {"vocab_size", "eos_token_id"} <= settings.keys()
        config: Any = SimpleNamespace(**settings) if whole else _config(path, name)
        tokenizer = _tokenizer(path, name, config, chat_template)
    check_tokenizer(config, tokenizer)
    return tokenizer


def _load_tiny(name: str, device: torch.device, dtype: str, chat_template: str | Path | None) -> Loaded:
    from airloop.models.tiny import tiny_model, tiny_tokenizer

    loaded = tiny_model(name.removeprefix("tiny:"), device=str(device), dtype="float32" if dtype == "auto" else dtype)
    if chat_template is not None:
        loaded.tokenizer = ChatTokenizer(tiny_tokenizer(), name=name, chat_template=chat_template)
        loaded.notes = list(loaded.tokenizer.notes)
    return loaded


def _device(device: str) -> torch.device:
    import torch

    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise AirError(f"there is no device {device!r}", 'use "auto", "cpu", "cuda" or "cuda:1"') from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise AirError(f"device {device!r} was asked for, but torch sees no CUDA device", 'use "auto" or "cpu"')
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise AirError(f"device {device!r} was asked for; there are {torch.cuda.device_count()} CUDA devices")
    return chosen


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences transformers' progress bars, advice and warnings; errors still raise."""
    # We encode one text at a time; the pool only earns a warning at each fork of a sandbox.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers.utils import logging as hf_logging

    verbosity, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity(logging.ERROR)
    hf_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hf_logging.set_verbosity(verbosity)
        if bars:
            hf_logging.enable_progress_bar()


def _config(path: Path, name: str) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise AirError(f"transformers cannot read {path / 'config.json'}: {error}", f"fetch {name} again") from error


def _tokenizer(path: Path, name: str, config: Any, chat_template: str | Path | None) -> ChatTokenizer:
    from transformers import PreTrainedTokenizerFast

    # tokenizer.json says how the model's text was cut when it was trained. AutoTokenizer (transformers 5)
    # rebuilds tokenizers by class name instead: SmolLM2's loses its split of digits, and any Qwen's gets one
    # token more.
    kind: Any = PreTrainedTokenizerFast
    if not (path / "tokenizer.json").exists():
        from transformers import AutoTokenizer

        kind = AutoTokenizer
    try:
        tokenizer = kind.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        found = ", ".join(sorted(p.name for p in path.glob("*token*"))) or "none"
        raise AirError(
            f"the tokenizer of {name} in {path} cannot be loaded (tokenizer files there: {found}): {error}",
            f"fetch {name} again, or give a directory with its tokenizer.json",
        ) from error
    ends = [config.eos_token_id]
    if (path / "generation_config.json").is_file():
        ends.append(read_object(path / "generation_config.json").get("eos_token_id"))
    ids = [i for end in ends if end is not None for i in (end if isinstance(end, list) else [end])]
    return ChatTokenizer(tokenizer, name=name, extra_stop_ids=ids, chat_template=chat_template)


def _model(path: Path, name: str, dtype: torch.dtype, device: torch.device) -> Any:
    from transformers import AutoModelForCausalLM

    # Straight onto a GPU: no copy of the whole model in the machine's memory first.
    placement = {"device_map": {"": device}} if device.type == "cuda" else {}
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=dtype,
            attn_implementation="sdpa",
            output_loading_info=True,
            local_files_only=True,
            trust_remote_code=False,
            **placement,
        )
    except Exception as error:
        raise AirError(f"the weights of {name} in {path} cannot be loaded: {error}") from error
    model, info = loaded
    for problem in ("missing_keys", "mismatched_keys"):
        if info.get(problem):  # transformers fills these with random numbers and a warning
            raise AirError(
                f"the weights of {name} in {path} do not fit its config.json: {len(info[problem])} "
                f"{problem.replace('_', ' ')}, first {sorted(map(str, info[problem]))[0]}",
                f"fetch {name} again; it may be an adapter or a part of another model",
            )
    model.config.use_cache = False
    return model.to(device).eval()


# --- dtype ------------------------------------------------------------------------------------------------


def _choose_dtype(asked: str, device: torch.device, config: Any) -> tuple[str, str]:
    """The dtype, and a sentence about it where it was measured."""
    import torch

    if asked != "auto":
        return asked, ""
    if device.type != "cpu":
        good = device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
        if good:
            return "bfloat16", ""
        return "float32", f"{torch.cuda.get_device_name(device)} has no bf16, so the model runs in fp32"
    if not multiplies_bf16():
        return "float32", ""
    gain = bf16_gain(int(config.hidden_size), int(getattr(config, "intermediate_size", 4 * config.hidden_size)))
    if gain >= BF16_MARGIN:
        return (
            "bfloat16",
            f"on this CPU bf16 is {gain:.1f} times as fast as fp32 at this model's size: bf16 it is",
        )
    return "float32", ""


def multiplies_bf16() -> bool:
    """Whether torch has kernels for bf16 products on this CPU. Without, one is not even tried: on a Neoverse-N1 it
    takes 300 times as long (unless wide_products.py does it), and makes torch switch oneDNN off for the process."""
    import torch

    return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def choose_kernels() -> None:
    """On ARM cores without bf16, OpenBLAS is quicker at fp32 products than oneDNN (Neoverse-N1, SmolLM2: 1.24 times at
    decoding 32 replies, 1.06 at prompts and at updates; `bench/cpu.py --kernels`). Other CPUs keep torch's choice, and
    so do deterministic runs, whose bits depend on it."""
    import torch

    if platform.machine() == "aarch64" and not multiplies_bf16():
        torch.backends.mkldnn.set_flags(False)


def bf16_gain(hidden: int, inner: int, seconds: float = 0.25) -> float:
    """How many times faster a bf16 linear layer is than an fp32 one, here, now, at these sizes.

    A row count for sampling and one for training, the smaller gain of the two: CPUs without bf16
    instructions can be faster at one and ten times slower at the other. On one thread, the two dtypes in
    turn, the best time of each: so that what else the machine is doing does not decide.
    """
    import torch
    from torch.nn.functional import linear

    def gain(rows: int) -> float:
        best = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
        operands = {d: (torch.ones(rows, hidden, dtype=d), torch.ones(inner, hidden, dtype=d)) for d in best}
        for x, weight in operands.values():  # the first call prepares kernels
            linear(x, weight)
        deadline = time.perf_counter() + seconds / 2
        while time.perf_counter() < deadline:
            for d, (x, weight) in operands.items():
                start = time.perf_counter()
                linear(x, weight)
                best[d] = min(best[d], time.perf_counter() - start)
        return best[torch.float32] / best[torch.bfloat16]

    inner = max(1, min(inner, 2**22 // hidden))  # 4 million weights say as much as 60 million, in the time given
    with torch.inference_mode(), one_thread():
        return min(gain(rows) for rows in (8, 128))


# --- checks on what was loaded ------------------------------------------------------------------------------


def check_tokenizer(model_config: Any, tokenizer: ChatTokenizer) -> None:
    """Refuses a tokenizer that belongs to another model (B8)."""
    rows = int(model_config.vocab_size)
    name = tokenizer.name
    if tokenizer.vocab_size > rows:
        raise AirError(
            f"the tokenizer of {name} has {tokenizer.vocab_size} tokens, but the model has rows for {rows}: "
            "it is the tokenizer of another model",
            "put the model's own tokenizer.json beside its config.json",
        )
    for what in ("bos_token_id", "eos_token_id", "pad_token_id"):
        declared = getattr(model_config, what, None)
        ids = declared if isinstance(declared, list) else [declared]
        outside = [i for i in ids if i is not None and not 0 <= i < rows]
        if outside:
            raise AirError(f"config.json of {name} says {what} = {outside[0]}, but there are {rows} tokens")
    unknown = [i for i in tokenizer.stop_ids if not 0 <= i < tokenizer.vocab_size]
    if unknown:
        raise AirError(
            f"{name} stops at token {unknown[0]}, but its tokenizer has {tokenizer.vocab_size} tokens: "
            "config.json and tokenizer are of different models",
            "put the model's own tokenizer.json beside its config.json",
        )
    eos = tokenizer.hf.eos_token_id
    declared = getattr(model_config, "eos_token_id", None)
    ends = declared if isinstance(declared, list) else [declared]
    words = [tokenizer.hf.convert_ids_to_tokens(i) for i in ends if i is not None]
    special = {*tokenizer.hf.all_special_ids, *tokenizer.hf.added_tokens_decoder}
    if words and eos not in ends and not any(i in special for i in ends):
        raise AirError(
            f"config.json of {name} ends a text with token {ends[0]}, to its tokenizer {words[0]!r}, "
            f"an ordinary word; the tokenizer's own end is {tokenizer.hf.eos_token!r} ({eos}): "
            "they are of different models",
            "put the model's own tokenizer.json beside its config.json",
        )
    for sample in ("The answer is 42.", 'def f(x):\n    return {"a": [1, 2]}\n', "naïve 漢字 🙂"):
        back = tokenizer.decode(tokenizer.encode(sample))
        if back.strip() != sample.strip():
            raise AirError(f"the tokenizer of {name} does not give back what it is given: {sample!r} → {back!r}")


# --- what is here -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelRow:
    name: str
    where: str  # "air cache", "hub cache" or "to be fetched"
    path: Path | None
    size: int  # bytes on disk
    type: str
    trainable: bool
    why_not: str = ""
    default: bool = False


def list_models() -> list[ModelRow]:
    """Models on this machine, and the default whether or not it is."""
    rows = [_row(name, "air cache", path) for name, path in cached_conversions()]
    rows += [_row(name, "hub cache", path) for name, path in cached_snapshots()]
    if not any(row.default for row in rows):
        rows.append(ModelRow(DEFAULT_MODEL, "to be fetched", None, 0, "llama", True, default=True))
    return sorted(rows, key=lambda row: (not row.default, row.name))


def _row(name: str, where: str, path: Path) -> ModelRow:
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    kind, why_not = "?", ""
    try:
        config = read_config(path, name)
        kind = str(config.get("model_type", "?"))
        check_config(config, name)
        check_weights(path, name)
    except AirError as error:
        why_not = error.problem
    return ModelRow(name, where, path, size, kind, not why_not, why_not, name == DEFAULT_MODEL)
