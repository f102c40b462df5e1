"""Sampled tokens stay as sampled, each is trained once, and the rest is what the template says."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rollout_world import STOP, TEMPLATES, chat_tokenizer
from support.transcripts import GrowingTranscript

from airloop.models.chat import ChatTokenizer
from airloop.types import Branch, Message, Sampled

tokenizer = functools.cache(chat_tokenizer)
NAMES = [None, *TEMPLATES]
OPENING = [Message(role="system", content="Be good."), Message(role="user", content="2+2?")]

WORDS = st.text(alphabet="ab \né<&日", max_size=12)
THOUGHTS = st.tuples(WORDS, WORDS).map(lambda two: f"<think>\n{two[0]}\n</think>\n\n{two[1]}")
BYTES = st.lists(st.integers(0, 256), max_size=10)  # half characters and <|im_start|> are sampled too


def says(text: str, *, stop: bool = True, chat: ChatTokenizer | None = None) -> Sampled:
    ids = (chat or tokenizer(None)).encode(text)
    return sampled([*ids, STOP] if stop else ids)


def sampled(ids: list[int]) -> Sampled:
    logprobs = tuple(-0.01 * (i + 1) for i in range(len(ids)))
    return Sampled(tuple(ids), logprobs, "stop" if ids[-1:] == [STOP] else "length", 3)


def user(text: str) -> list[Message]:
    return [Message(role="user", content=text)]


def trained(branches: tuple[Branch, ...]) -> dict[int, tuple[list[int], list[float]]]:
    found: dict[int, tuple[list[int], list[float]]] = {}
    for branch in branches:
        assert len(branch.tokens) == len(branch.train) == len(branch.logprobs) == len(branch.turns)
        for token, train, logprob, turn in zip(branch.tokens, branch.train, branch.logprobs, branch.turns, strict=True):
            if train:
                ids, logprobs = found.setdefault(turn, ([], []))
                ids.append(token)
                logprobs.append(logprob)
            else:
                assert logprob == 0.0
    return found


@pytest.mark.parametrize("name", ["chatml", "no separator", "drops thinking", "forgets", None])
def test_prompt_reads_as_the_template_renders_it(name: str | None) -> None:
    chat = tokenizer(name)
    transcript = GrowingTranscript(chat)
    transcript.extend(OPENING)
    history = list(OPENING)
    for turn in range(3):
        assert chat.decode(transcript.prompt()) == chat.render(history, (), True)
        reply = transcript.append_sampled(says(f"<think>\nhm {turn}\n</think>\n\nIt is {turn}."))
        history += [reply, *user("And now?")]
        transcript.extend(history[-1:])
    assert chat.decode(transcript.prompt()) == chat.render(history, (), True)


def test_separator_after_the_stop_token_is_kept() -> None:  # B7
    chat = tokenizer("chatml")
    transcript = GrowingTranscript(chat)
    transcript.extend(OPENING)
    before = transcript.prompt()
    transcript.append_sampled(says("4"))
    transcript.extend(user("ok"))
    bridge = transcript.prompt()[len(before) + 2 :]
    assert chat.decode(bridge) == "\n<|im_start|>user\nok<|im_end|>\n<|im_start|>assistant\n"


def test_a_cut_reply_is_closed_by_the_template_untrained() -> None:
    chat = tokenizer("chatml")
    transcript = GrowingTranscript(chat)
    transcript.extend(OPENING)
    transcript.append_sampled(says("it is fo", stop=False))
    transcript.extend(user("ok"))
    transcript.append_sampled(says("4"))
    (branch,) = transcript.branches()
    untrained = [t for t, train in zip(branch.tokens, branch.train, strict=True) if not train]
    assert chat.decode(untrained).count("<|im_end|>") == 4  # system, user, the cut reply, user
    assert chat.decode(branch.tokens).endswith("ok<|im_end|>\n<|im_start|>assistant\n4<|im_end|>")


@pytest.mark.parametrize("name", ["trims", "adds a space"])
@pytest.mark.parametrize("text", [" 4", "4 \n", "\n\n4", "4", "", " \n"])
def test_trimming_templates_do_not_fork(name: str, text: str) -> None:
    chat = tokenizer(name)
    transcript = GrowingTranscript(chat)
    transcript.extend(OPENING)
    for _ in range(3):
        transcript.append_sampled(says(text))
        transcript.extend(user("more"))
    (branch,) = transcript.branches()
    assert chat.decode(branch.tokens).count("<|im_end|>") == chat.render(
        [*OPENING, *[Message(role="assistant", content="x"), *user("more")] * 3], (), True
    ).count("<|im_end|>") - (1 if name == "trims" else 0)  # the last user message comes after the last reply


def test_rewritten_history_forks_and_shares_the_tokens_before_it() -> None:  # B6
    chat = tokenizer("drops thinking")
    transcript = GrowingTranscript(chat)
    transcript.extend(OPENING)
    first_prompt = transcript.prompt()
    replies = [says(f"<think>\nlong {i}\n</think>\n\nshort {i}") for i in range(3)]
    for i, reply in enumerate(replies):
        transcript.append_sampled(reply)
        transcript.extend(user(f"next {i}"))
    branches = transcript.branches()
    assert len(branches) == 3
    assert all(list(b.tokens[: len(first_prompt)]) == first_prompt for b in branches)
    assert "long 0" not in chat.decode(branches[1].tokens)
    assert {t: ids for t, (ids, _) in trained(branches).items()} == {
        i: list(r.token_ids) for i, r in enumerate(replies)
    }


def test_kept_replies_keep_their_very_tokens_across_a_fork() -> None:
    chat = tokenizer("drops thinking")
    transcript = GrowingTranscript(chat)
    transcript.extend(OPENING)
    spelled = [*b"<|im_end|> is a word", STOP]  # encode() of the same text would give other tokens
    transcript.append_sampled(sampled(spelled))
    transcript.extend(user("next"))
    transcript.append_sampled(says("<think>\nlong\n</think>\n\nshort"))
    transcript.extend(user("next"))
    transcript.append_sampled(says("end"))
    first, second = transcript.branches()
    start = first.turns.index(0)
    assert list(second.tokens[start : start + len(spelled)]) == spelled
    assert second.turns[start] == 0
    assert not second.train[start]


def test_a_reply_keeps_its_tokens_when_only_what_followed_it_was_rewritten() -> None:
    transcript = GrowingTranscript(tokenizer("forgets"))
    transcript.extend(OPENING)
    spelled = [*b"<|im_end|> is a word", STOP]
    for _ in range(3):
        transcript.append_sampled(sampled(spelled))
        transcript.extend(user("a long observation"))
    branches = transcript.branches()
    assert len(branches) == 2  # the first observation is shortened only when the second comes
    starts = [branches[1].turns.index(turn) for turn in (0, 1, 2)]
    assert [list(branches[1].tokens[s : s + len(spelled)]) for s in starts] == [spelled] * 3
    assert [branches[1].train[s] for s in starts] == [False, False, True]  # turn 1 is trained where it was sampled


def test_a_prompt_that_was_never_answered_is_not_trained_on() -> None:
    transcript = GrowingTranscript(tokenizer(None))
    transcript.extend(OPENING)
    assert transcript.branches() == ()
    transcript.append_sampled(says("4"))
    (before,) = transcript.branches()
    transcript.extend(user("a very long observation"))
    assert transcript.branches() == (before,)


def test_tool_messages_of_one_turn() -> None:
    chat = tokenizer(None)
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    transcript = GrowingTranscript(chat, tools)
    transcript.extend(OPENING)
    reply = transcript.append_sampled(says('<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'))
    results = [Message(role="tool", content=f"r{i}", name="look") for i in range(2)]
    transcript.extend(results)
    assert chat.decode(transcript.prompt()) == chat.render([*OPENING, reply, *results], tools, True)


REPLIES = st.one_of(WORDS.map(lambda t: list(t.encode())), THOUGHTS.map(lambda t: list(t.encode())), BYTES)
TURNS = st.lists(st.tuples(REPLIES, st.booleans(), WORDS), max_size=5)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(NAMES), turns=TURNS)
def test_sampled_tokens_never_change_and_are_trained_once(
    name: str | None, turns: list[tuple[list[int], bool, str]]
) -> None:
    chat = tokenizer(name)
    one, many = GrowingTranscript(chat), GrowingTranscript(chat, strategy="branching")
    history: list[Message] = list(OPENING)
    for transcript in (one, many):
        transcript.extend(OPENING)
    earlier: tuple[Branch, ...] = ()
    contexts: list[list[int]] = []
    faithful = name != "adds a space"
    for ids, stop, observation in turns:
        reply = sampled([*ids, STOP] if stop else ids)
        contexts.append(one.prompt())
        assert many.prompt() == contexts[-1]
        history.append(one.append_sampled(reply))
        many.append_sampled(reply)
        now = one.branches()
        assert all(b.tokens == a.tokens[: len(b.tokens)] for b, a in zip(earlier, now, strict=False))
        earlier = now
        history += user(observation)
        one.extend(history[-1:])
        many.extend(history[-1:])
        text = history[-2]["content"]
        trimmed = name == "trims" and (text != text.strip() or observation != observation.strip())
        faithful = faithful and stop and not trimmed and "�" not in text
        if faithful:
            assert chat.decode(one.prompt()) == chat.render(history, (), True)
    wanted = {turn: ([*ids, STOP] if stop else ids) for turn, (ids, stop, _) in enumerate(turns) if ids or stop}
    assert {turn: ids for turn, (ids, _) in trained(one.branches()).items()} == wanted
    assert trained(one.branches()) == trained(many.branches())
    for branch in many.branches():
        turn = branch.turns[-1]
        start = branch.train.index(True)
        assert list(branch.tokens[:start]) == contexts[turn]
