"""Family B, fast: the model's small files. No weights are read; from a hub, none are fetched."""

from __future__ import annotations

from airloop.doctor.base import Finding, check, passed
from airloop.doctor.case import Case
from airloop.errors import AirError


@check("B3", stage="fast", title="the model is found")
def model_is_found(case: Case) -> Finding:
    return passed(f"{case.config.model.name}, model type {case.model_config.get('model_type')}")


@check("B1", "B2", stage="fast", title="it is a text model that can be trained here")
def model_is_trainable(case: Case) -> Finding:
    """Neither multimodal (B1) nor of a type that the installed transformers does not know (B2), nor anything else that
    would run and compute something else."""
    from airloop.models.checks import check_config

    name, settings = case.config.model.name, case.model_config
    try:
        check_config(settings, name)
    except AirError as error:
        multimodal = "multimodal" in error.problem
        why = (
            "a text trainer has no use for its other inputs, and their layers would be left out or break"
            if multimodal
            else "it could not be loaded, or would be computed as another model than it is"
        )
        fix = error.fix or "choose a decoder-only text model, for example Qwen/Qwen3-4B-Instruct-2507"
        return Finding("fail", error.problem, why, fix, ids=("B1",) if multimodal else ("B2",))
    kind, layers, rows = (settings.get(key) for key in ("model_type", "num_hidden_layers", "vocab_size"))
    return passed(f"{kind}, {layers} layers, a vocabulary of {rows}")


@check("B8", stage="fast", title="the tokenizer is the model's own")
def tokenizer_fits(case: Case) -> Finding:
    """Size of the vocabulary, special ids, and text that comes back as it went in."""
    tokenizer = case.tokenizer  # refused while it is loaded, if it is another model's
    rows = case.model_config.get("vocab_size")
    words = tokenizer.hf.convert_ids_to_tokens(list(tokenizer.stop_ids))
    return passed(f"{tokenizer.vocab_size} tokens for {rows} rows, stops at {', '.join(map(str, words))}")


@check("B5", stage="fast", title="the chat template takes 0, 1 and 2 tool calls")
def template_takes_calls(case: Case) -> Finding:
    """Where an environment has tools: what the template can do was tried when it was loaded."""
    users = [name for name, env in case.envs.items() if env.action_format == "tools"]
    tokenizer = case.tokenizer
    if not users:
        return passed("no environment calls tools")
    own = tokenizer.supports_tools and tokenizer.supports_tool_role
    if tokenizer.supports_parallel_calls:
        how = "in the template's own form" if own else "as text in <tool_call> tags: the template has no place for them"
        return passed(f"0, 1 and 2 calls in a reply were rendered {how}")
    return Finding(
        "warn",
        f"the chat template of {tokenizer.name} was tried with 0, 1 and 2 tool calls in a reply and takes at most one",
        f"of several calls in a reply of {', '.join(users)} only the first is run; a reply with two cannot be rendered "
        "again as it was",
        "give a template that takes several, or keep it if one call in a reply is what is wanted",
        {"model.chat_template": "template.jinja"},
    )
