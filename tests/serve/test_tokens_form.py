"""Token ids in and out, as clients that render conversations themselves ask for them."""

from __future__ import annotations

from typing import Any

import pytest
from support.endpoint_world import CHAT, Client, Recorded, play, trained_pairs
from support.rollout_world import STOP

from airloop.chat.forest import Forest
from airloop.serve import app

PATH = "/inference/v1/generate"
COMMA = ord(",")


def said_by(body: dict[str, Any], engine: Recorded | None = None, **more: Any) -> tuple[int, dict[str, Any], Any]:
    found: list[Any] = []

    async def work(client: Client) -> None:
        answer = await client.post(body, PATH)
        found.append((answer.status_code, answer.json()))

    episode = play(work, engine or Recorded(), **more)
    return (*found[0], episode)


def test_the_body_of_the_renderers_client_is_answered() -> None:
    sampling = {"max_tokens": 4, "logprobs": 1, "stop_token_ids": [257], "skip_special_tokens": False}
    engine = Recorded(lambda prompt, seed: "no")
    status, said, episode = said_by({"token_ids": [1, 2], "sampling_params": sampling}, engine)
    assert status == 200, said
    (choice,) = said["choices"]
    assert choice["token_ids"] == [*CHAT.encode("no"), STOP] and choice["finish_reason"] == "stop"
    assert trained_pairs(episode) == engine.pairs and episode.exchanges[0].sampled.stop == "stop"


@pytest.mark.parametrize("training", [True, False])
def test_a_token_that_the_client_names_ends_a_reply_and_is_no_ending_of_the_policys(training: bool) -> None:
    engine = Recorded(lambda prompt, seed: "one, two, three")
    body = {"token_ids": [1, 2], "sampling_params": {"stop_token_ids": [COMMA, 5]}}
    status, said, episode = said_by(body, engine, training=training)
    (choice,) = said["choices"]
    assert status == 200 and choice["token_ids"] == CHAT.encode("one,") and choice["finish_reason"] == "stop"
    assert episode.exchanges[0].sampled.stop == "text"
    # Nothing was sampled behind it: what came back is what was drawn.
    assert trained_pairs(episode) == engine.pairs == [([1, 2], CHAT.encode("one,"))]
    assert engine.counters.abandoned == 0


OFF = {"n": 1, "stop": [], "min_tokens": 0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "ignore_eos": False}
OFF |= {"frequency_penalty": 0, "logit_bias": None, "stop_token_ids": [], "detokenize": False, "seed": None}
OFF |= {"bad_words": [], "allowed_token_ids": None, "prompt_logprobs": None, "include_stop_str_in_output": True}


def test_what_is_off_may_be_said() -> None:
    body = {"model": "m", "token_ids": [1], "stream": False, "features": None, "cache_salt": "x", "priority": 0}
    status, said, _ = said_by({**body, "sampling_params": OFF})
    assert status == 200, said


@pytest.mark.parametrize(
    ("more", "param"),
    [
        *(({"sampling_params": {name: value}}, name) for name, value in (
            *(("stop_token_ids", ids) for ids in (["a"], [-1], [True], 5, [10**9], list(range(65)))),
            *(("stop", ["x"]), ("min_tokens", 2), ("repetition_penalty", 1.1), ("ignore_eos", True), ("n", 2)),
            *(("logprobs", 5), ("prompt_logprobs", 1), ("bad_words", ["x"]), ("allowed_token_ids", [3])),
            ("guided_json", {}),
        )),
        ({"sampling_params": [1]}, "sampling_params"),
        ({"stream": True}, "stream"),
        ({"features": {"mm_hashes": {}}}, "features"),
        ({"content_parts": []}, "content_parts"),
    ],
)  # fmt: skip
def test_what_cannot_be_had_is_refused(more: dict[str, Any], param: str) -> None:
    status, said, episode = said_by({"token_ids": [1, 2], **more})
    assert status == 400 and said["error"]["param"] == param and not episode.exchanges, said


@pytest.mark.parametrize(("part", "name"), [(Forest, "append"), (app, "tokens_answer")])
def test_a_defect_of_ours_spoils_the_episode(part: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part, name, lambda *given, **more: 1 / 0)
    status, said, episode = said_by({"token_ids": [1, 2]})
    assert status == 500 and said["error"]["code"] == "internal_error"
    assert isinstance(episode.failure, ZeroDivisionError)
