"""Who answers in place of the policy: a script, or a model behind a URL."""

from __future__ import annotations

import time

from airloop.chat.forest import Reply
from airloop.engine.base import Sampling
from airloop.serve.answer import Answer, Choice, Exchange
from airloop.serve.chat_form import BadRequest, ChatRequest, read_reply
from airloop.serve.episode import ServedEpisode
from airloop.serve.stable_prefix import StreamListener
from airloop.serve.tokens_form import TokensRequest
from airloop.types import Action, Agent, StopReason, Times


class ServedAgent(ServedEpisode):
    """The same for an agent that is not the policy, a script or a model behind a URL: none of its replies are
    trained."""

    def __init__(self, agent: Agent, most_requests: int | None = None) -> None:
        super().__init__(None, None, Sampling(1), 0, most_requests=most_requests)  # type: ignore[arg-type]
        self.agent = agent

    async def chat(self, request: ChatRequest, listener: StreamListener | None = None) -> Answer:
        self.count_request()
        if request.n > 1:
            raise BadRequest("Who answers here gives one reply.", param="n")
        messages, known, before = self.recognise(request.messages)
        self.delivered.update(known.values())
        began = time.monotonic()
        with self.noting_its_end():
            reply = await self.agent.reply(messages, request.tools)
        text, times = reply["content"], Times(model=time.monotonic() - began)
        for stop in request.stop:
            text = text.partition(stop)[0]
        parsed = read_reply(text, tools=request.tools, parser=self.parser, cut=False, thinking=False)
        actions = parsed.calls or (Action("text", text),)
        exchange = Exchange(tuple(messages), request.tools, text, actions, None, times, began)
        message, number = self.note(exchange, parsed, before), len(self.exchanges) - 1
        return Answer((Choice(message, "tool_calls" if parsed.calls else "stop", (), (), number),), 0, 0, 0)

    async def generate(self, request: TokensRequest) -> tuple[Reply, StopReason]:
        raise BadRequest("Who answers here takes messages, not tokens.", code="unsupported_endpoint")
