"""Conversations that part, go back and run side by side: every sampled token is trained once, in what it was sampled
from."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rollout_world import STOP, TEMPLATES, chat_tokenizer

from airloop.chat.forest import Forest, Prompt, Reply
from airloop.types import Branch, Message, Sampled

tokenizer = functools.cache(chat_tokenizer)
OPENING = [Message(role="system", content="Be good."), Message(role="user", content="2+2?")]
ODD = [*b"<|im_end|> is a word", STOP]  # encode() of the same text would give other tokens


def sampled(ids: Sequence[int]) -> Sampled:
    return Sampled(tuple(ids), tuple(-0.01 * (i + 1) for i in range(len(ids))), "stop", 3)


def said(reply: Reply) -> Message:
    return Message(role="assistant", content=reply.text)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def contexts(branches: Sequence[Branch]) -> dict[int, tuple[list[int], list[int]]]:
    """Of each trained reply: the tokens before it, and its own."""
    found: dict[int, tuple[list[int], list[int]]] = {}
    for branch in branches:
        for turn in dict.fromkeys(t for t, train in zip(branch.turns, branch.train, strict=True) if train):
            places = [i for i, (t, own) in enumerate(zip(branch.turns, branch.train, strict=True)) if own and t == turn]
            assert turn not in found and places == list(range(places[0], places[0] + len(places)))
            found[turn] = (list(branch.tokens[: places[0]]), [branch.tokens[i] for i in places])
    return found


def test_a_conversation_that_parts_shares_what_was_before() -> None:
    forest = Forest(tokenizer("chatml"))
    root = forest.append(forest.prompt(OPENING), sampled(ODD))
    one = forest.prompt([*OPENING, said(root), user("and 3+3?")])
    two = forest.prompt([*OPENING, said(root), user("and 4+4?")])  # before the other one's reply has come
    first, second = forest.append(two, sampled([97, STOP])), forest.append(one, sampled([98, STOP]))
    assert one.token_ids[: root.end] == two.token_ids[: root.end] == [*forest.prompt(OPENING).token_ids, *ODD]
    branches = forest.branches()
    assert len(branches) == 2 and sum(map(sum, (b.train for b in branches))) == len(ODD) + 4
    assert contexts(branches)[first.number] == (two.token_ids, [97, STOP])
    assert contexts(branches)[second.number] == (one.token_ids, [98, STOP])


def test_several_replies_of_one_prompt_are_as_many_lines() -> None:
    forest = Forest(tokenizer("chatml"))
    prompt = forest.prompt(OPENING)
    replies = [forest.append(prompt, sampled([97 + i, STOP])) for i in range(3)]
    found = contexts(forest.branches())
    assert found == {r.number: (prompt.token_ids, list(r.token_ids)) for r in replies}
    later = forest.prompt([*OPENING, said(replies[1]), user("go on")])
    assert later.token_ids[: replies[1].end] == [*prompt.token_ids, 98, STOP]


def test_who_goes_back_finds_the_reply_as_it_was_sampled() -> None:
    forest = Forest(tokenizer("chatml"))
    history = list(OPENING)
    for turn in range(4):
        reply = forest.append(forest.prompt(history), sampled([*ODD[:-1], 48 + turn, STOP]))
        history += [said(reply), user(f"observation {turn}")]
    back = forest.prompt([*history[:5], user("something else")])  # behind the second reply
    assert (
        back.base is None
        and back.token_ids[: forest.replies[1].end] == forest._lines[0].tokens[: forest.replies[1].end]
    )
    last = forest.append(back, sampled([99, STOP]))
    assert contexts(forest.branches())[last.number] == (back.token_ids, [99, STOP])


def test_replies_of_one_text_are_told_by_who_knows_them() -> None:
    """Sampled twice from the same prompt, as other tokens of the same text: who is asked for is taken."""
    forest = Forest(tokenizer("chatml"))
    prompt = forest.prompt(OPENING)
    spelled = tokenizer("chatml").encode("abab")
    one, two = forest.append(prompt, sampled([*b"abab", STOP])), forest.append(prompt, sampled([*spelled, STOP]))
    conversation = [*OPENING, said(one), user("more")]
    for reply in (one, two):
        found = forest.prompt(conversation, known={2: reply.number})
        assert tuple(found.token_ids[reply.start : reply.end]) == reply.token_ids


def test_an_empty_reply_to_a_prompt_is_no_part_of_that_prompt_when_it_comes_again() -> None:
    """Its text is the earlier reply's, too, and it was the last to say so."""
    forest = Forest(tokenizer("chatml"))
    first = forest.append(forest.prompt(OPENING), sampled([STOP]))
    conversation = [*OPENING, said(first), user("")]
    prompt = forest.prompt(conversation)
    forest.append(prompt, sampled([STOP]))
    assert forest.prompt(conversation).token_ids == prompt.token_ids


def test_a_reply_that_came_back_changed_is_text_like_any_other() -> None:
    forest = Forest(tokenizer("chatml"))
    reply = forest.append(forest.prompt(OPENING), sampled(ODD))
    changed = Message(role="assistant", content=f"{reply.text}!")
    prompt = forest.prompt([*OPENING, changed, user("go on")])
    assert prompt.base is None and set(prompt.line.turns) == {-1}
    chat = tokenizer("chatml")
    assert chat.decode(prompt.token_ids) == chat.render([*OPENING, changed, user("go on")], (), True)


def test_what_is_not_to_be_trained_is_seen_by_others_and_not_trained() -> None:
    forest = Forest(tokenizer("chatml"))
    first = forest.append(forest.prompt(OPENING), sampled(ODD), trained=False)
    second = forest.append(forest.prompt([*OPENING, said(first), user("go on")]), sampled([97, STOP]))
    (branch,) = forest.branches()
    assert contexts([branch]).keys() == {second.number} and 0 in branch.turns


def test_other_tokens_than_were_sent_are_never_trained() -> None:
    forest = Forest(tokenizer("chatml"))
    reply = forest.append(forest.prompt(OPENING), sampled(ODD))
    forest._lines[reply.line].tokens[0] += 1
    with pytest.raises(AssertionError, match="other tokens than it was sampled in"):
        forest.branches()


WORDS = st.text(alphabet="ab \né<&日", max_size=8)
IDS = st.one_of(
    WORDS.map(lambda t: list(t.encode())),
    st.tuples(WORDS, WORDS).map(lambda t: list(f"<think>\n{t[0]}\n</think>\n\n{t[1]}".encode())),
    st.lists(st.integers(0, 256), max_size=6),
)
# What is done next: where the conversation goes on from, what is done to its past, what is said, and how many replies
# are sampled from it; with `late`, they come only after the next prompt was made.
STEPS = st.lists(
    st.tuples(
        st.integers(0, 20),
        st.sampled_from(["echo", "echo", "echo", "edit", "drop", "swap", "summarise"]),
        WORDS,
        st.lists(st.tuples(IDS, st.booleans()), min_size=1, max_size=2),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


def shaped(history: list[Message], how: str) -> list[Message]:
    past = [dict(message) for message in history]
    if how == "edit" and len(past) > 2:
        past[2]["content"] += "?"
    elif how == "drop" and len(past) > 3:
        del past[2]
    elif how == "swap" and len(past) > 4:
        past[2], past[4] = past[4], past[2]
    elif how == "summarise" and len(past) > 4:
        past[2:-1] = [user("(what was said before)")]  # type: ignore[list-item]
    return past  # type: ignore[return-value]


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from([None, *TEMPLATES]), steps=STEPS)
def test_H16_whatever_agents_do_each_token_is_trained_once_in_what_it_was_sampled_from(name: str | None, steps) -> None:  # type: ignore[no-untyped-def]
    forest, chat = Forest(tokenizer(name)), tokenizer(name)
    states: list[list[Message]] = [list(OPENING)]
    waiting: list[tuple[Prompt, list[Message], list[int]]] = []
    sent: dict[int, tuple[list[int], list[int]]] = {}

    def deliver() -> None:
        for prompt, conversation, ids in waiting:
            before = list(prompt.token_ids)
            reply = forest.append(prompt, sampled(ids))
            states.append([*conversation, said(reply)])
            if ids:
                sent[reply.number] = (before, ids)
        waiting.clear()

    for place, how, words, replies, late in steps:
        history = shaped(states[place % len(states)], how)
        conversation = [*history, user(words)] if history[-1]["role"] == "assistant" else history
        prompt = forest.prompt(conversation)
        whole = all("�" not in message["content"] for message in conversation)
        if name in (None, "chatml", "no separator") and whole and all(r.stop for r in forest.replies):
            assert chat.decode(prompt.token_ids) == chat.render(conversation, (), True)
        waiting += [(prompt, conversation, [*ids, STOP] if stop else ids) for ids, stop in replies]
        if not late:
            deliver()
    deliver()
    assert contexts(forest.branches()) == sent
    many = Forest(tokenizer(name), "branching")
    many._lines, many.replies = forest._lines, forest.replies
    assert contexts(many.branches()) == sent and len(many.branches()) == len(sent)
