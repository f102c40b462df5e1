"""From messages to text to token ids and back: a tokenizer with its chat template, both put to the test.

What a template can do is found by trial, not read from the model's name: it is rendered with a system
message, with tools, with a tool's answer, with two calls, and what comes out (or fails) decides. What it
cannot do is done here, in the form Hermes and Qwen models use, and told to the user in `notes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from airloop.errors import AirError
from airloop.models.chat_forms import CHATML, merge_same_role, with_tools_in_system, without_system, without_tool_role
from airloop.models.template_speed import speed_up_template
from airloop.models.template_time import PROBE_S, RENDER_S, at_most, refuse_long_steps

GIVE_TEMPLATE = 'give a template that can do this: chat_template = "file.jinja" under [model]'

# Inside the text of a special token it means: these are only characters (U+FDD0 is a non-character, for a
# program's own use). render() puts it there, encode() cuts the text at it and leaves it out.
ONLY_TEXT = "\ufdd0"

KEPT = 256  # texts whose ids are kept: at least the prompts of a step's groups

# A word no template contains by chance.
PROBE = "qzprobe"
PROBE_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": f"{PROBE}_tool",
        "description": "Looks a word up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}


def _call(word: str) -> dict[str, Any]:
    # Mistral's templates want ids of nine letters or digits.
    call_id = f"{PROBE}01{'a' if word.endswith('1') else 'b'}"[-9:]
    function = {"name": f"{PROBE}_tool", "arguments": {"word": word}}
    return {"type": "function", "id": call_id, "function": function}


class ChatTokenizer:
    """A Hugging Face tokenizer and its chat template. Every id `encode` gives comes from text alone.

    What an environment, a file or a user writes can never become a special token: where the content of a message
    that is not the assistant's spells one (`<|im_end|>`), the model reads the same characters, as ordinary
    tokens. So nobody but the template opens or closes a turn.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        name: str = "the model",
        extra_stop_ids: Sequence[int] = (),
        chat_template: str | Path | None = None,
    ) -> None:
        self.hf = tokenizer
        self.name = name
        self.notes: list[str] = []
        self.tool_notes: list[str] = []  # matter only to environments with tools
        self._choose_template(chat_template)
        self._check_renders()
        self.stop_ids = self._find_stop_ids(extra_stop_ids)
        if not self.supports_tools:
            self.tool_notes.append(
                f"the chat template of {name} has no place for tools: they are listed in the system message, "
                'and calls are expected as <tool_call>{"name": …, "arguments": …}</tool_call>'
            )
        if not self.supports_system:
            self.notes.append(
                f"the chat template of {name} has no system role: "
                "the system message is put before the first user message"
            )
        if not self.supports_parallel_calls:
            self.tool_notes.append(f"the chat template of {name} allows one tool call in a reply, not more")

    # --- tokens -------------------------------------------------------------------------------------

    def encode(self, text: str) -> list[int]:
        """Ids of the text as it stands: nothing is added, special tokens written in it are recognised, unless
        render() has marked them as being only text."""
        return list(self._encoded(text))

    @cached_property
    def _encoded(self) -> Callable[[str], tuple[int, ...]]:
        """All episodes of a group begin with the same prompt: it is encoded once."""

        def encode(text: str) -> tuple[int, ...]:
            return tuple(i for piece in text.split(ONLY_TEXT) for i in self.hf.encode(piece, add_special_tokens=False))

        return lru_cache(maxsize=KEPT)(encode)

    def decode(self, ids: Sequence[int], *, skip_stop: bool = False) -> str:
        """Text of the ids, special tokens included; `skip_stop` leaves out the stop tokens at the end."""
        kept = list(ids)
        while skip_stop and kept and kept[-1] in self.stop_ids:
            kept.pop()
        if len(kept) == 1:
            return self._decoded_one(kept[0])
        return self._decoded(kept)

    @cached_property
    def _decoded(self) -> Callable[[list[int]], str]:
        """By the tokenizer behind transformers' own where that only passes the ids on, after it has looked at each:
        a stream asks for its reply again and again."""
        from transformers import PreTrainedTokenizerFast as Fast

        own, kind = getattr(self.hf, "backend_tokenizer", None), type(self.hf)
        passed_on = isinstance(self.hf, Fast) and (kind.decode, kind._decode) == (Fast.decode, Fast._decode)
        if own is not None and passed_on:
            return lambda ids: str(own.decode(ids, skip_special_tokens=False))
        return lambda ids: str(self.hf.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    @cached_property
    def _decoded_one(self) -> Callable[[int], str]:
        """The token that ends a reply is asked for with every reply."""

        return lru_cache(maxsize=KEPT)(lambda id: self._decoded([id]))

    @property
    def vocab_size(self) -> int:
        """One more than the largest id, so added tokens count."""
        return self._vocab_size

    @cached_property
    def _vocab_size(self) -> int:
        return max(self.hf.get_vocab().values()) + 1

    # --- messages -----------------------------------------------------------------------------------

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
    ) -> str:
        """The chat as text. No tools and an empty list of tools are the same prompt. Special tokens in what
        others than the assistant say are marked with ONLY_TEXT, for encode()."""
        chat = [self._guarded(message) for message in messages]
        if tools and not self.supports_tools:
            chat = with_tools_in_system(chat, tools)
        if not self.supports_tool_role:
            chat = without_tool_role(chat)
        if not self.supports_system:
            chat = without_system(chat)
        if self.needs_alternation:
            chat = merge_same_role(chat)
        given = [dict(tool) for tool in tools] if tools and self.supports_tools else None
        try:
            return self._apply(chat, given, add_generation_prompt, RENDER_S)
        except AirError:
            raise
        except Exception as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise AirError(
                f"the chat template of {self.name} cannot render the roles [{roles}]: {error}",
                GIVE_TEMPLATE,
            ) from error

    def _guarded(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A tool's `name` is guarded too: it is whatever the agent called. An assistant's words are, where they are
        `foreign`: put into its mouth by whoever sends the conversation."""
        own = {key: value for key, value in message.items() if key != "foreign"}
        if (message.get("role") == "assistant" and not message.get("foreign")) or not self._special:
            return own
        kinds = ("content", "name", "tool_calls", "reasoning_content")
        return {**own, **{key: self._only_text(own[key]) for key in kinds if key in own}}

    def _only_text(self, value: Any) -> Any:
        """The value with what would be special tokens in it marked as text."""
        assert self._special is not None
        if isinstance(value, str):
            # Looked for first: most texts have none, and to search for each of them takes many times as long.
            if not any(start in value for start in self._special_starts):
                return value
            return self._special.sub(rf"\g<0>{ONLY_TEXT}", value)
        if isinstance(value, dict):
            return {key: self._only_text(inner) for key, inner in value.items()}
        return [self._only_text(inner) for inner in value] if isinstance(value, list) else value

    @cached_property
    def _special(self) -> re.Pattern[str] | None:
        """Finds the first character of each special token in a text. Tokens that the tokenizer itself calls
        ordinary (Qwen's <tool_call>) are not among them: in them there is no power to guard against."""
        words = self._special_words
        return re.compile(rf"(?=(?:{'|'.join(map(re.escape, words))})).", re.DOTALL) if words else None

    @cached_property
    def _special_words(self) -> list[str]:
        declared = {token.content for token in self.hf.added_tokens_decoder.values() if token.special}
        stops = self.hf.convert_ids_to_tokens(list(self.stop_ids))
        return sorted(w for w in {*declared, *self.hf.all_special_tokens, *stops} if w is not None and len(w) > 1)

    @cached_property
    def _special_starts(self) -> tuple[str, ...]:
        """The first two characters of each, without which none can be there."""
        return tuple(sorted({word[:2] for word in self._special_words}))

    def _apply(
        self,
        chat: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool = False,
        seconds: float = PROBE_S,
    ) -> str:
        with at_most(seconds, self.name):
            text = self.hf.apply_chat_template(
                chat, tools=tools, add_generation_prompt=add_generation_prompt, tokenize=False
            )
        return str(text)

    def _try(self, chat: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str | None:
        """The rendered text, or None where the template refuses; templates refuse in any way they like."""
        try:
            return self._apply(chat, tools)
        except AirError:
            raise
        except Exception:
            return None

    # --- what the template can do, by trial -----------------------------------------------------------

    @cached_property
    def supports_system(self) -> bool:
        text = self._try([{"role": "system", "content": PROBE}, {"role": "user", "content": "hi"}])
        return text is not None and PROBE in text

    @cached_property
    def supports_tools(self) -> bool:
        text = self._try([{"role": "user", "content": "hi"}], [PROBE_TOOL])
        return text is not None and f"{PROBE}_tool" in text

    @cached_property
    def supports_tool_role(self) -> bool:
        """Whether a tool's answer has a place of its own. A template that prints any role it is given
        (SmolLM2's) does not count: its model has never seen a tool."""
        return self.supports_tools and PROBE + "answer" in (self._try(self._chat_with_calls(1), [PROBE_TOOL]) or "")

    @cached_property
    def supports_parallel_calls(self) -> bool:
        """Whether a reply may hold two calls (B5). Llama 3's templates allow one."""
        if not self.supports_tools or not self.supports_tool_role:
            return True  # calls are then written as text, by us
        text = self._try(self._chat_with_calls(2), [PROBE_TOOL])
        return text is not None and all(f"{PROBE}word{i}" in text for i in (1, 2))

    @cached_property
    def needs_alternation(self) -> bool:
        user = {"role": "user", "content": "hi"}
        return self._try([user, user]) is None

    def _chat_with_calls(self, count: int) -> list[dict[str, Any]]:
        calls = [_call(f"{PROBE}word{i + 1}") for i in range(count)]
        answers = [
            {
                "role": "tool",
                "name": f"{PROBE}_tool",
                "content": f"{PROBE}answer{i}",
                "tool_call_id": call["id"],
            }
            for i, call in enumerate(calls)
        ]
        return [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "", "tool_calls": calls},
            *answers,
        ]

    # --- set-up -----------------------------------------------------------------------------------------

    def _choose_template(self, given: str | Path | None) -> None:
        if given is not None:
            path = Path(given).expanduser()
            try:
                self.hf.chat_template = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise AirError(
                    f"cannot read the chat template {path}: {error}",
                    "chat_template under [model] is the path of a Jinja file",
                ) from error
        elif not self.hf.chat_template:
            known = self.hf.get_vocab()
            if not {"<|im_start|>", "<|im_end|>"} <= known.keys():
                raise AirError(
                    f"{self.name} has no chat template: it is probably a base model, not trained for chat",
                    f"take its instruct version, or {GIVE_TEMPLATE}",
                )
            self.hf.chat_template = CHATML
            self.notes.append(f"{self.name} brings no chat template; it knows ChatML's tokens, so ChatML is used")
        refuse_long_steps(self.hf.chat_template, self.name)

    def _check_renders(self) -> None:
        import jinja2

        try:
            text = self._apply([{"role": "user", "content": PROBE}], None, True)
        except jinja2.TemplateSyntaxError as error:
            raise AirError(
                f"the chat template of {self.name} is not valid Jinja, line {error.lineno}: {error.message}"
            ) from error
        except AirError:
            raise
        except Exception as error:
            raise AirError(
                f"the chat template of {self.name} cannot render a single user message: {error}",
                GIVE_TEMPLATE,
            ) from error
        if PROBE not in text:
            raise AirError(f"the chat template of {self.name} leaves out the user's message")
        if isinstance(self.hf.chat_template, str):
            speed_up_template(self.hf.chat_template)

    def _find_stop_ids(self, extra: Sequence[int]) -> tuple[int, ...]:
        """The end-of-turn token of the template first, then the tokenizer's and the model's own.

        A template that closes no turn leaves the model nothing to learn to stop with: every reply would
        run to max_tokens (B9).
        """
        reply = f"{PROBE}reply"
        user = {"role": "user", "content": "hi"}
        text = self._try([user, {"role": "assistant", "content": reply}])
        if text is None or reply not in text:
            raise AirError(
                f"the chat template of {self.name} leaves out the assistant's message",
                GIVE_TEMPLATE,
            )
        declared = [i for i in (*extra, self.hf.eos_token_id) if i is not None]
        special = {*self.hf.all_special_ids, *self.hf.added_tokens_decoder, *declared}
        closing = [i for i in self.encode(text.rsplit(reply, 1)[1]) if i in special]
        if not closing:
            raise AirError(
                f"the chat template of {self.name} puts no stop token after the assistant's message, "
                f"so no reply would ever end before max_tokens (stop tokens: {self._words(declared)})",
                GIVE_TEMPLATE,
            )
        return tuple(dict.fromkeys([closing[0], *declared]))

    def _words(self, ids: Sequence[int]) -> str:
        return ", ".join(f"{self.hf.convert_ids_to_tokens(i)} ({i})" for i in dict.fromkeys(ids)) or "none"
