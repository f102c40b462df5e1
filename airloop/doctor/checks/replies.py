"""Can the model speak to its environment? Its chat template, how its replies are read, and how they end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airloop.chat.actions import parse
from airloop.chat.tool_calls import PARSERS
from airloop.chat.transcript import Transcript
from airloop.doctor.base import Finding, check, passed
from airloop.doctor.checks.signal import finished_probe, supervised_start
from airloop.doctor.probe import Probe
from airloop.errors import AirError
from airloop.text.prefix import common_prefix
from airloop.types import Action, Message, Sampled, Trajectory

if TYPE_CHECKING:
    from airloop.doctor.case import Case
    from airloop.envs.base import ActionFormat
    from airloop.models.chat import ChatTokenizer

# With fewer replies "never" and "seldom" cannot be told apart: one in seven is missed by 20 replies once in 20 times.
ENOUGH_REPLIES = 20
# Share of replies that can be read. Below 2 %, half of all groups of 8 episodes with 4 replies hold not one (0.98^32):
# there is nothing to reinforce. Below 10 %, an episode of 4 replies seldom holds two in a row.
REFUSED, FEW = 0.02, 0.10
# Nearly every reply runs to max_tokens: less than one in 20 ends where the model wanted.
ENDLESS = 0.95
SHOWN = 60  # characters of a text that are quoted


@check("B4", "B10", stage="probe", title="replies hold actions that can be read")
def valid_actions(case: Case) -> Finding:
    """Of calls, those of tools that there are, in a form that the config's parser reads."""
    probe = case.probe
    envs = probe.parts.envs
    played = [t for t in probe.trajectories if envs[t.task.env].action_format != "text"]
    turns = [turn for t in played for turn in t.turns]
    if not turns:
        if any(env.action_format != "text" for env in envs.values()):
            raise probe.no_reply
        return passed("the environment takes any reply as it is")
    probe = finished_probe(case)
    invented = Counter(action.name for t in played for action in _invented(t))
    valid = sum(_holds_action(turn.actions, _tool_names(t)) for t in played for turn in t.turns)
    share = valid / len(turns)
    seen = f"{valid} of {len(turns)} replies hold an action that can be read ({share:.0%})"
    if invented:
        seen += f"; {invented.total()} calls are of tools that there are not: {_listed(invented)}"
    if share >= FEW or len(turns) < ENOUGH_REPLIES:
        return passed(seen)
    parser = _better_parser(probe, valid)
    start = {} if parser else supervised_start(probe)
    unread = Counter(a.text for turn in turns for a in turn.actions if a.kind == "invalid")
    there = ", ".join(sorted({name for t in played for name in _tool_names(t)}))
    taught = f"The commonest answer was: {unread.most_common(1)[0][0]}" if unread else ""
    return Finding(
        "fail" if share < REFUSED else "warn",
        seen,
        f"what cannot be read earns nothing and teaches nothing; below {REFUSED:.0%} most groups hold not one action. "
        + (f"The tools that there are: {there}" if invented else taught),
        "the parser that reads this model's calls:"
        if parser
        else "a supervised start ([warmstart]), or a model that was trained to act; `--skip-proofs` goes on with this "
        "one, and the run's record says so.",
        parser or start,
        ids=("B10",) if invented else ("B4", "B10") if parser else ("B4",),
        detail="\n---\n".join(turn.reply["content"] for turn in turns[:4]),
    )


def _holds_action(actions: Sequence[Action], names: Collection[str]) -> bool:
    return any(a.kind != "invalid" and (a.kind != "tool" or _is_there(a.name, names)) for a in actions)


def _invented(episode: Trajectory) -> Iterator[Action]:
    """Calls in the right form, of tools that the agent was never shown."""
    names = _tool_names(episode)
    calls = (action for turn in episode.turns for action in turn.actions if action.kind == "tool")
    return (action for action in calls if not _is_there(action.name, names))


def _is_there(name: str, names: Collection[str]) -> bool:
    return not names or name in names


def _tool_names(episode: Trajectory) -> frozenset[str]:
    """None where the agent was told of its tools in words only."""
    return frozenset(str(tool.get("function", {}).get("name")) for tool in episode.tools)


def _listed(names: Counter[str]) -> str:
    return ", ".join(repr(name[:SHOWN]) for name, _ in names.most_common(3))


def _better_parser(probe: Probe, valid: int) -> Mapping[str, Any]:
    """The parser that reads at least ten times as many replies, if there is one."""
    envs = probe.parts.envs
    episodes = [t for t in probe.trajectories if envs[t.task.env].action_format == "tools"]
    tools = [(turn.reply["content"], _tool_names(t)) for t in episodes for turn in t.turns]
    for parser in PARSERS:
        read = sum(_reads(text, parser, names) for text, names in tools)
        if read > 10 * max(valid, 1) or (valid == 0 and read > FEW * len(tools)):
            return {"inference.model.tool_call_parser": parser}
    return {}


def _reads(text: str, parser: str, names: Collection[str]) -> bool:
    return any(action.kind == "tool" and _is_there(action.name, names) for action in parse(text, "tools", parser)[0])


@check("B9", stage="probe", title="replies end by themselves")
def replies_end(case: Case) -> Finding:
    probe = finished_probe(case)
    sampled = [turn.sampled for turn in probe.turns if turn.sampled]
    long = [s for s in sampled if s.stop == "length"]
    tokenizer, most = probe.parts.loaded.tokenizer, probe.parts.config.orchestrator.sampling.max_tokens
    share = len(long) / max(1, len(sampled))
    stops = ", ".join(_word(tokenizer, i) for i in tokenizer.stop_ids)
    seen = f"{len(long)} of {len(sampled)} replies ran to max_tokens = {most} ({share:.0%}; stop tokens: {stops})"
    # What the model says where it wants to end: a special token that is no stop token, in the middle of a reply.
    special = {*tokenizer.hf.all_special_ids} - set(tokenizer.stop_ids)
    instead = Counter(i for s in long for i in dict.fromkeys(s.token_ids) if i in special)
    ended = max(instead.items(), key=lambda item: item[1], default=(0, 0))
    if len(long) >= ENOUGH_REPLIES // 2 and ended[1] > len(long) / 2:
        return Finding(
            "fail",
            f"{seen}; {ended[1]} of them go on after {_word(tokenizer, ended[0])}",
            "the model ends its reply with a token at which sampling does not stop: what follows is noise, and it is "
            "trained on",
            'a chat template that closes a turn with this token: chat_template = "file.jinja" under [model], or '
            "eos_token_id in the model's generation_config.json.",
        )
    if share > ENDLESS and len(sampled) >= ENOUGH_REPLIES:
        return Finding(
            "warn",
            seen,
            "the model does not end its replies, or has no room to: the end of an action may be cut off",
            "more tokens for a reply, or a supervised start that teaches to stop.",
            {"orchestrator.sampling.max_tokens": 2 * most},
        )
    return passed(seen)


def _word(tokenizer: ChatTokenizer, token: int) -> str:
    return f"{tokenizer.hf.convert_ids_to_tokens(token)} ({token})"


# --- the template ---------------------------------------------------------------------------------------


@check("B7", "B6", stage="fast", title="the chat template only ever adds to what was said")
def template_is_stable(case: Case) -> Iterator[Finding]:
    """Three turns, with 0, 1 and 2 tool calls where the environment has tools."""
    tokenizer = case.tokenizer
    plain = str(tokenizer.hf.apply_chat_template(_OPENING, add_generation_prompt=True, tokenize=False))
    if tokenizer.render(_OPENING, []) != tokenizer.render(_OPENING) or tokenizer.render(_OPENING, []) != plain:
        yield Finding(
            "fail",
            "an empty list of tools gives another prompt than no tools: "
            + _difference(plain, tokenizer.render(_OPENING, [])),
            "the model would be shown a list of tools that is empty, in training or in sampling only",
            "report it: ChatTokenizer.render must leave out what is empty.",
            ids=("B7",),
        )
    for kind in sorted({env.action_format for env in case.envs.values()}):
        yield _three_turns(tokenizer, kind)


_OPENING: list[Message] = [Message(role="user", content="What is in the file?")]
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}


def _call_text(word: str) -> str:
    return f'<tool_call>\n{{"name": "look", "arguments": {{"word": "{word}"}}}}\n</tool_call>'


def _turns(kind: ActionFormat) -> list[tuple[str, list[Message]]]:
    """Replies and what is answered to them."""
    if kind != "tools":
        replies = ["I look first.", "```bash\nls -l\n```", "Two:\n```bash\ncat a\n```\n```bash\ncat b\n```"]
        return [(reply, [Message(role="user", content=f"answer {i}")]) for i, reply in enumerate(replies)]

    def answer(word: str, call: int) -> Message:
        return Message(role="tool", content=f"found {word}", name="look", tool_call_id=f"call_{call}")

    return [
        ("I look first.", [Message(role="user", content="Go on.")]),
        (_call_text("a"), [answer("a", 0)]),
        (f"{_call_text('b')}\n{_call_text('c')}", [answer("b", 0), answer("c", 1)]),
    ]


def _three_turns(tokenizer: ChatTokenizer, kind: ActionFormat) -> Finding:
    tools = [_TOOL] if kind == "tools" else []
    transcript = Transcript(tokenizer, tools)
    history: list[Message] = list(_OPENING)
    rendered, kept = tokenizer.render(history, tools), list[int]()
    for number, (reply, answers) in enumerate([*_turns(kind), ("Done.", [])], 1):
        transcript.show(history)
        before, rendered = rendered, tokenizer.render(history, tools)
        said, wanted = tokenizer.decode(transcript.prompt()), tokenizer.decode(tokenizer.encode(rendered))
        if said != wanted:
            return Finding(
                "fail",
                f"before reply {number} ({kind}) the tokens read otherwise than the template: "
                + _difference(wanted, said),
                "what the model is shown lacks, or has too much of, what the template puts between turns",
                "report it with the chat template: the transcript must follow it to the letter.",
                ids=("B7",),
            )
        if transcript.prompt()[: len(kept)] != kept:
            return Finding(
                "warn",
                f"with reply {number} ({kind}) the template renders what came before otherwise: "
                + _difference(before, rendered),
                "sampled tokens stay as they were, so every such turn begins a sequence of its own: the training is "
                "right, but it computes each of them in full, and so does sampling",
                'a template that keeps what was said: chat_template = "file.jinja" under [model].',
                ids=("B6", "B7"),
            )
        ids = [*tokenizer.encode(reply), tokenizer.stop_ids[0]]
        kept = [*transcript.prompt(), *ids]
        history += [transcript.append_sampled(Sampled(tuple(ids), (0.0,) * len(ids), "stop", 0)), *answers]
    return passed(f"{kind}: three turns{' with 0, 1 and 2 calls' if tools else ''}, each an extension of the last")


def _difference(a: str, b: str) -> str:
    at = common_prefix(a, b)
    return f"…{a[max(0, at - 20) : at]!r} goes on {a[at : at + SHOWN]!r} in one, {b[at : at + SHOWN]!r} in the other"


@check("B4", "B5", stage="fast", title="the template's tool calls can be read back")
def calls_round_trip(case: Case) -> Iterator[Finding]:
    """A call as the template writes it, which is how the model learned to, goes through the config's parser."""
    if not any(env.action_format == "tools" for env in case.envs.values()):
        yield passed("no environment has tools")
        return
    tokenizer, parser = case.tokenizer, case.config.inference.model.tool_call_parser
    counts = (1, 2) if tokenizer.supports_parallel_calls else (1,)
    for count in counts:
        words = ["a", "b"][:count]
        try:
            text = _rendered_calls(tokenizer, words)
        except AirError as error:
            yield Finding("fail", error.problem, "the model cannot have learned to call tools in this form", error.fix)
            return
        readers = [name for name in (parser, *PARSERS) if _words_read(text, name) == words]
        if parser not in readers:
            yield Finding(
                "fail",
                f'tool_call_parser = "{parser}" does not read {count} call{"s" if count > 1 else ""} as the template '
                f"writes them: {text[: 2 * SHOWN]!r}",
                "the model learned to write calls in this form, so none of them would run",
                "the parser that reads this form:" if readers else "a model or a template that writes calls as JSON.",
                {"inference.model.tool_call_parser": readers[0]} if readers else {},
                ids=("B4",),
            )
            return
    yield passed(f"{' and '.join(map(str, counts))} calls, written by the template, are read by {parser}")


def _rendered_calls(tokenizer: ChatTokenizer, words: Sequence[str]) -> str:
    """The assistant's part of a message with these calls."""
    calls = [
        {"type": "function", "id": f"call0000{i}", "function": {"name": "look", "arguments": {"word": word}}}
        for i, word in enumerate(words)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": calls}
    whole = tokenizer.render([*_OPENING, message], [_TOOL], False)
    said = whole[common_prefix(tokenizer.render(_OPENING, [_TOOL]), whole) :]
    for stop in tokenizer.stop_ids:
        said = said.split(tokenizer.decode([stop]))[0] if tokenizer.decode([stop]).strip() else said
    return said.strip()


def _words_read(text: str, parser: str) -> list[Any]:
    return [action.arguments.get("word") for action in parse(text, "tools", parser)[0]]
