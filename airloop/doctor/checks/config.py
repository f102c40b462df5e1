"""Family A, fast: what a config says, before anything is looked at that it names."""

from __future__ import annotations

from collections.abc import Iterator

from airloop.config.cautions import cautions
from airloop.doctor.base import Finding, check, not_judged, passed
from airloop.doctor.case import OPENING_S, Case
from airloop.errors import AirError
from airloop.sinks import SINKS
from airloop.watch.sinks import check_sinks

WHY = {
    "A1": "a key in the wrong section sets nothing where it was meant to",
    "A2": "what another tool calls so has another name here, or does not exist",
    "A3": "a single value cannot say what the table's keys say",
    "A4": "prompt and reply share the context: what one takes the other has not",
    "A5": "every trajectory is compared with the mean of its group, so groups must be whole and have two or more",
    "A8": "a path that depends on where the command is started is found today and lost tomorrow",
    "A11": "nothing in a config is ignored: what cannot be used is refused",
    "A12": "a correction must load, and must not change what was meant",
    "A13": "what a file says and air does not know is asked for: filled in, it would be another run than yours",
    "C3": "the weights would be in one memory and the adapter in the other: it breaks deep in the forward pass",
}


@check("A1", "A2", "A3", "A4", "A5", "A8", "A11", "A13", "C3", stage="fast", title="the config is understood")
def config_is_understood(case: Case) -> Iterator[Finding]:
    """Mistakes in the files and flags, with the sentences that `air train` refuses them with."""
    for mistake in case.refused:
        why = WHY.get(mistake.id, WHY["A11"])
        yield Finding("fail", mistake.problem, why, mistake.fix or "see the sentence above", ids=(mistake.id,))
    if not case.refused:
        o = case.config.orchestrator
        groups = o.batch_size // o.rollouts_per_example
        yield passed(
            f"every key is used; {groups} groups of {o.rollouts_per_example} a step, context {case.config.seq_len}"
        )


@check("A10", "A5", "A11", "E2", "F7", stage="fast", title="settings are such as people mean")
def settings_are_usual(case: Case) -> Iterator[Finding]:
    """What is allowed but seldom meant: a learning rate too small for LoRA above all (A10)."""
    found = cautions(case.config)
    for caution in found:
        yield Finding("warn", caution.seen, caution.why, caution.fix, caution.changes, ids=(caution.id,))
    if not found:
        optim, how = case.config.trainer.optim, case.config.trainer.model.train
        yield passed(f"lr {optim.lr:g} with {'LoRA' if how == 'lora' else 'all weights trained'}")


@check("A7", stage="fast", title="credentials are there")
def credentials_are_there(case: Case) -> Finding:
    """Of what the run logs to; the hub's are asked for with the model."""
    config, why = case.config, "the first thing to be logged would be refused, after the model has been loaded"
    try:
        check_sinks(config)
    except AirError as error:
        return Finding("fail", error.problem, why, error.fix)
    for name, asked in config.sinks.items():
        if (missing := SINKS[name].missing(asked)) is not None:
            lines = {f"{name}.{key}": value for key, value in missing.instead.items()}
            return Finding("fail", missing.seen, why, missing.fix, lines)
    titles = ", ".join(SINKS[name].title for name in config.sinks)
    return passed(f"for {titles}" if titles else "none needed")


@check("A4", stage="fast", title="prompt and reply fit the context")
def replies_fit(case: Case) -> Finding:
    """The longest of the first prompts, through the real template and tokenizer, and a reply of full length."""
    from airloop.models.checks import check_context

    config = case.config
    check_context(case.model_config, config.seq_len, config.model.name)
    if not case.prompts:
        return not_judged(
            f"no task was open within {OPENING_S:.0f} s, so no prompt could be measured",
            "nothing need be changed: `air train` measures prompts before its first step, however long they take",
        )
    longest = max(case.prompts, key=lambda prompt: prompt.tokens)
    wanted, room = config.orchestrator.sampling.max_tokens, config.seq_len - longest.tokens
    seen = (
        f"the longest of {len(case.prompts)} prompts ({longest.task.id}) has {longest.tokens} tokens: with max_tokens "
        f"= {wanted} that is {longest.tokens + wanted}"
    )
    if room >= wanted:
        return passed(f"{seen} of a context of {config.seq_len}")
    return _too_long(case, f"{seen}, more than the context of {config.seq_len}", longest.tokens, wanted)


def _too_long(case: Case, seen: str, prompt: int, wanted: int) -> Finding:
    """A longer context, where the model has one; else shorter replies. A reply ends where the context is full, so this
    stops nothing unless the prompt alone fills it."""
    config, needed = case.config, prompt + wanted
    limit = case.model_config.get("max_position_embeddings")
    room = config.seq_len - prompt
    if isinstance(limit, int) and needed > limit and room > 0:
        fix, lines = "shorten the replies", {"orchestrator.sampling.max_tokens": room}
    else:
        # A round number: prompts differ a little from task to task.
        length = min(-(-needed // 256) * 256, limit if isinstance(limit, int) and limit >= needed else needed + 256)
        fix = f"set the context to at least {needed}" + (f", or max_tokens to at most {room}" if room > 0 else "")
        lines = {"seq_len": length}
    if room > 0:
        return Finding("warn", seen, f"after such a prompt a reply is cut off at {room} of {wanted} tokens", fix, lines)
    return Finding("fail", seen, "the prompt leaves no room for a reply: no episode would get beyond it", fix, lines)
