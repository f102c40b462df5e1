"""Loading a model and its tokenizer: found, checked, read.

Torch and transformers take seconds to import, so they are imported inside functions."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airloop.errors import AirError
from airloop.events import Say
from airloop.files import read_object
from airloop.models.chat import ChatTokenizer
from airloop.models.checks import check_config, check_weights, read_config
from airloop.models.dtypes import DTYPES, choose_dtype
from airloop.models.head import check_head
from airloop.models.loaded import Loaded
from airloop.models.silence_transformers import silenced
from airloop.models.sources import DEFAULT_MODEL, locate, small_files
from airloop.models.tokenizer_checks import check_tokenizer

if TYPE_CHECKING:
    import torch


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

    from airloop.models.fp32_matmul import are_slow, widen_products

    if dtype not in DTYPES:
        raise AirError(f"there is no dtype {dtype!r} here", f"use one of {', '.join(DTYPES)}")
    target = _device(device)
    if name.startswith("tiny:"):
        return _load_tiny(name, target, dtype, chat_template)

    files = locate(name, say=say)
    config_json = read_config(files.path, name)
    check_config(config_json, name)
    check_weights(files.path, name)
    with silenced():
        config = _config(files.path, name)
        tokenizer = _tokenizer(files.path, name, config, chat_template)
        check_tokenizer(config, tokenizer)
        chosen, why = choose_dtype(dtype, target, config)
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
    with silenced():
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
