"""An episode, call by call: what the tools show, what mistakes are told, what is counted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.musique_world import call, make, observed, play

from airloop.envs.base import load_environment
from airloop.errors import AirError
from airloop.types import Action
from airloop_envs.musique.args import MusiqueArgs
from airloop_envs.musique.env import MusiqueEnv
from airloop_envs.musique.session import cut
from airloop_envs.musique.tools import CALLS, schemas


def first(env: MusiqueEnv) -> Any:
    return env.question(env.tasks("train")[0])


def test_a_good_episode_from_search_to_answer() -> None:
    env = make(top_n=1)
    question = first(env)
    one, two = (d for d in question.documents if d.supporting)
    game = play(
        env,
        [
            call("retrieve_documents", query=f"{one.title} {one.text}"),
            call("get_document", id=two.id),
            call("complete", reasoning="…", final_answer=f"the {question.answers[0]}.", cited_doc_ids=[one.id, two.id]),
        ],
    )
    assert game.ending == "done" and game.reward == pytest.approx(1)
    assert observed(game)[:2] == [f"[{d.id}] {d.title}\n{d.text}" for d in (one, two)]
    assert game.metrics["searches"] == 1 and game.metrics["documents_shown"] == 2


def test_several_calls_in_one_reply_each_get_their_answer() -> None:
    env = make()
    game = play(
        env, [call("get_document", id=1) + "\n" + call("get_document", id=2) + call("get_document", id=99)], max_turns=1
    )
    texts = observed(game)
    assert [t.startswith(f"[{i}] ") for i, t in zip((1, 2), texts, strict=False)] == [True, True]
    assert texts[2].startswith("There is no document 99") and game.metrics["format"] == pytest.approx(0.5 * 2 / 3)


def test_where_a_template_has_one_call_only_the_first_runs() -> None:
    env = make(calls_per_turn=1)
    two = call("get_document", id=1) + call("get_document", id=2)
    game = play(env, [two, two])
    texts = observed(game)
    assert texts[0].startswith("[1] ") and "One call in a reply" in texts[1]
    assert "shown above" in texts[2]  # the count starts anew in each reply
    assert game.metrics["documents_shown"] == 1


@pytest.mark.parametrize(
    ("line", "taught"),
    [
        ("I think it is Paris.", "No tool call found. Write <tool_call>"),
        ('<tool_call>{"name": "complete", "arguments": {"final_answer": }}</tool_call>', "Malformed JSON"),
        (call("search", query="x"), "There is no tool 'search'."),
        (call("retrieve_document", query="x"), "Did you mean retrieve_documents?"),
        (call("retrieve_documents"), '\'query\' is missing. Write {"name": "retrieve_documents"'),
        (call("retrieve_documents", query=""), "'query': String should have at least 1 character"),
        (call("retrieve_documents", query="x", top_n=6), "top_n is at most 5."),
        (call("retrieve_documents", query="x", top_n=0), "'top_n': Input should be greater than or equal to 1"),
        (call("retrieve_documents", q="x"), "'query' is missing"),
        (call("retrieve_documents", query="x", n=1), "there is no argument 'n'"),
        (call("get_document", id="first"), "'id': Input should be a valid integer"),
        (call("complete", final_answer="x"), "'cited_doc_ids' is missing"),
        (call("complete", final_answer="x", cited_doc_ids=3), "'cited_doc_ids': Input should be a valid list"),
        (call("complete", final_answer=None, cited_doc_ids=[]), "'final_answer': Input should be a valid string"),
    ],
)
def test_malformed_calls_are_answered_with_what_is_right(line: str, taught: str) -> None:
    game = play(make(), [line])
    assert taught in observed(game)[0]
    assert game.ending == "max_turns" and game.reward == 0


@pytest.mark.parametrize(
    "arguments", [{"final_answer": 35, "cited_doc_ids": ["1", 2.0]}, {"final_answer": 3.5, "cited_doc_ids": []}]
)
def test_numbers_in_or_out_of_quotes_are_understood(arguments: dict[str, Any]) -> None:
    assert play(make(), [call("complete", **arguments)]).ending == "done"


def test_the_form_of_llama_is_read() -> None:
    env = make(calls_per_turn=1)
    spoken = '{"name": "get_document", "parameters": {"id": "1"}}'
    for line in (spoken, f"<|python_tag|>{spoken}", f"{spoken}; {spoken}"):
        assert observed(play(env, [line]))[0].startswith("[1] "), line


def test_an_answer_that_was_never_given_keeps_what_was_found() -> None:
    env = make()
    wanted = sorted(first(env).supporting)
    game = play(env, [call("get_document", id=id) for id in wanted])
    assert game.ending == "max_turns"
    assert game.rewards == {"em": 0, "f1": 0, "retrieval_f1": 1, "citation_f1": 0, "format": 0}
    assert game.metrics["recall"] == 1 and game.metrics["format"] == 0.5


def test_documents_that_do_not_exist_can_be_cited_but_do_not_pay() -> None:
    env = make()
    right = sorted(first(env).supporting)
    game = play(env, [call("complete", final_answer="x", cited_doc_ids=[*right, 77, 78])])
    assert game.metrics["citation_recall"] == 1
    assert game.metrics["citation_precision"] == pytest.approx(len(right) / (len(right) + 2))


def test_texts_are_cut_to_their_budget_and_shown_once() -> None:
    env = make(paragraph_chars=30, document_chars=60)
    document = first(env).document(1)
    search = call("retrieve_documents", query=f"{document.title} {document.text}", top_n=1)
    texts = observed(play(env, [search, search, call("get_document", id=1), call("get_document", id=1)]))
    assert texts[0].split("\n")[1] == cut(document.text, 30) and texts[0].endswith(" …")
    assert texts[1] == f"[1] {document.title} (shown above)"
    assert texts[2].split("\n")[1] == cut(document.text, 60)
    assert texts[3] == texts[1]


@given(st.text(), st.integers(0, 50))
def test_a_cut_text_is_a_beginning_within_the_limit(text: str, limit: int) -> None:
    short = cut(text, limit)
    kept = short.removesuffix(" …")
    assert short == text or (text.startswith(kept) and len(kept) <= limit)


def test_the_last_reply_is_announced() -> None:
    env = make(max_turns=3)
    texts = observed(play(env, [call("get_document", id=1)] * 3))
    assert ["Last reply" in text for text in texts] == [False, True, False]


def test_nothing_found_is_told() -> None:
    assert "No document has these words" in observed(play(make(), [call("retrieve_documents", query="zzz")]))[0]


def test_schemas_describe_what_is_accepted() -> None:
    for prompt in ("full", "short"):
        for tool in schemas(prompt, 2, 3):
            function = tool["function"]
            kind = CALLS[function["name"]]
            assert set(function["parameters"]["properties"]) == set(kind.model_fields) - {"example"}
            kind.model_validate(dict(kind.example))
            assert set(function["parameters"]["required"]) <= set(kind.example)


@pytest.mark.slow
def test_tools_reach_the_model_through_its_template_or_the_system_message() -> None:
    from airloop.models.chat import ChatTokenizer
    from airloop.models.chat_forms import CHATML
    from airloop.models.tiny import tiny_tokenizer

    async def opening() -> Any:
        env = make()
        async with env.open(env.tasks("train")[0], 0) as session:
            return await session.begin()

    shown = asyncio.run(opening())
    for template in (
        CHATML,
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
    ):
        hf = tiny_tokenizer()
        hf.chat_template = template
        tokenizer = ChatTokenizer(hf, name="tiny")
        text = tokenizer.render(list(shown.messages), list(shown.tools), True)
        assert tokenizer.supports_tools == (template == CHATML)
        assert all(f'"name": "{name}"' in text for name in CALLS) and "<tool_call>" in text


def test_rewards_are_chosen_by_name() -> None:
    env = make()
    env.weigh({"mixture_by_hops": 1.0, "f1": 0.0})
    answer = call("complete", final_answer="x", cited_doc_ids=[1])
    assert set(play(env, [answer]).rewards) == {"mixture_by_hops", "f1"}
    with pytest.raises(AirError, match="did you mean 'recall'"):
        env.weigh({"recal": 1.0})


def test_arguments_that_contradict_each_other_are_refused() -> None:
    for args, words in (
        ({"top_n": 4, "max_top_n": 2}, "more than max_top_n"),
        ({"embedding_model": "x"}, "uses no embedding_model"),
        ({"top_n": 6}, "less than or equal to 5"),
        ({"noise": 0.5}, "did you mean 'noise_rate'"),
    ):
        with pytest.raises(AirError, match=words):
            load_environment("musique", args)


ARGUMENTS = st.dictionaries(
    st.sampled_from(["query", "top_n", "id", "final_answer", "cited_doc_ids", "reasoning", "x"]),
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.lists(st.integers(), max_size=3),
)
ACTIONS = st.lists(
    st.builds(Action, kind=st.just("tool"), name=st.sampled_from([*CALLS, "other", ""]), arguments=ARGUMENTS),
    max_size=8,
)


@pytest.mark.slow
@given(ACTIONS, st.integers(0, 2))
def test_whatever_is_called_the_session_goes_on_and_is_scored(actions: list[Action], per_turn: int) -> None:
    env = MusiqueEnv(MusiqueArgs(calls_per_turn=per_turn))

    async def run() -> None:
        async with env.open(env.tasks("train")[0], 0) as session:
            session.view((await session.begin()).messages)
            done = False
            for action in actions:
                if not done:
                    observation = await session.act(action)
                    assert observation.text
                    done = observation.done
                assert session.valid_calls <= session.calls
            score = await session.finish()
            assert set(score.rewards) == set(env.reward_weights)
            assert (score.metrics["completed"] == 1) == done

    asyncio.run(run())
