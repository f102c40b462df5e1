"""What ends before it is done: stopped from outside, cancelled, or both; and a client that is not listened to."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.endpoint_world import CHAT, Recorded, episode_of, user

from airloop.serve.app import Endpoint
from airloop.serve.cancellation import Stoppable
from airloop.serve.server import serving
from airloop.serve.stream import WholeAnswer


def enough() -> Exception:
    return ValueError("enough")


async def waiting(*stoppables: Stoppable) -> str:
    """Inside each of them, the first outermost."""
    if not stoppables:
        await asyncio.sleep(60)
        return "never"
    with stoppables[0]:
        return await waiting(*stoppables[1:])


def ended(*stopped: int, cancel: bool = False, levels: int = 2) -> str:
    """How one ends of which these were stopped, and whether its task is still being cancelled."""

    async def work() -> str:
        stoppables = [Stoppable(lambda i=i: ValueError(f"level {i}")) for i in range(levels)]  # type: ignore[misc]
        task = asyncio.ensure_future(waiting(*stoppables))
        await asyncio.sleep(0)
        for i in stopped:
            stoppables[i].stop()
            stoppables[i].stop()
        if cancel:
            task.cancel()
        try:
            return await asyncio.wait_for(task, 30)
        except (ValueError, asyncio.CancelledError) as error:
            return f"{error}" if isinstance(error, ValueError) else "cancelled"

    return asyncio.run(work())


def test_what_is_stopped_ends_in_its_reason_and_who_cancels_it_is_not_mistaken_for_that() -> None:
    assert ended(0) == "level 0" and ended(1) == "level 1"
    assert ended(0, 1) == "level 0", "who is outside has stopped all of it"
    assert ended(cancel=True) == ended(0, cancel=True) == ended(1, 0, cancel=True) == "cancelled"


def test_after_it_was_stopped_its_task_goes_on_and_stopping_what_is_over_does_nothing() -> None:
    async def work() -> tuple[int, str]:
        stoppable = Stoppable(enough)
        stoppable.stop()  # not begun
        with stoppable:
            await asyncio.sleep(0)
        stoppable.stop()  # over
        asyncio.get_running_loop().call_soon(lambda: other.stop())
        other = Stoppable(enough)
        with pytest.raises(ValueError, match="enough"):
            await waiting(other)
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling(), "went on"

    assert asyncio.run(work()) == (0, "went on")


@pytest.mark.parametrize("stream", [False, True])
def test_who_sends_much_and_hangs_up_is_heard_to(stream: bool) -> None:
    """The reading stops where more has come than was taken: it goes on before anything is waited for."""

    class Endless(Recorded):
        async def generate(self, *given: Any, **more: Any) -> Any:
            began.set()
            try:
                await asyncio.sleep(60)
            finally:
                ended.set()

    async def ask() -> int:
        endpoint, episode = Endpoint("tiny"), episode_of(Endless())
        key = endpoint.open("one", episode)
        async with serving(endpoint.app()) as url:
            _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            body = json.dumps({"messages": [user("hi")], "user": "x" * 200_000, "stream": stream}).encode()
            head = f"POST /e/one/v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\n"
            writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            await asyncio.wait_for(began.wait(), 30)
            writer.close()
            await asyncio.wait_for(ended.wait(), 30)
        return episode.abandoned

    began, ended = asyncio.Event(), asyncio.Event()
    assert asyncio.run(ask()) == 1


def test_a_whole_answer_is_what_starlette_would_send() -> None:
    from starlette.responses import JSONResponse

    async def sent(response: Any) -> list[Any]:
        seen: list[Any] = []

        async def send(message: Any) -> None:
            seen.append({key: value for key, value in message.items() if key != "more_body"})

        await response({"type": "http"}, None, send)
        return seen

    said = {"text": 'é "x" \n 🙂', "none": None, "numbers": [1, -0.5], "inner": {"a": True}}
    assert asyncio.run(sent(WholeAnswer(said))) == asyncio.run(sent(JSONResponse(said)))
    with pytest.raises(ValueError, match="JSON"):
        WholeAnswer({"not a number": float("nan")})


@pytest.mark.parametrize(
    "text", ["", "plain < text", "<|im_end|>", "a<|im_end|><|im_start|>b", "<|im_en", "<<|im_end|>"]
)
def test_special_tokens_are_looked_for_where_there_may_be_some(text: str) -> None:
    assert CHAT._special is not None
    assert CHAT._only_text({"x": [text]}) == {"x": [CHAT._special.sub("\\g<0>\ufdd0", text)]}


@pytest.mark.parametrize("text", ["", "a", "plain text", "é 🙂 \n\t ,. <|im_end|> <tool_call>", "it 's  here ."])
def test_ids_are_decoded_as_transformers_would(text: str) -> None:
    ids = CHAT.encode(text)
    assert CHAT.decode(ids) == CHAT.hf.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
