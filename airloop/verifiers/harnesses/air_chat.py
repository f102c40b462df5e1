"""A harness for environments of verifiers' second interface that starts no program: messages and the task's tools, as
its own harness `null` has them, in the environment's own process. An episode takes milliseconds of a processor, where a
program that imports its libraries takes a second. Found by worker.py, as `harness = { id = "air_chat" }`.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any

import httpx
from openai import APIStatusError, AsyncOpenAI
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harness import Harness
from verifiers.v1.harnesses.utils.compaction import is_context_overflow
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.runtimes import ProgramResult

__all__ = ["AirChat"]
NO_LIMIT = httpx.Limits(max_connections=None, max_keepalive_connections=None)
HTTP = httpx.AsyncClient(timeout=httpx.Timeout(None, connect=60.0), limits=NO_LIMIT)  # one for all episodes
DONE = ProgramResult(exit_code=0, stdout="", stderr="")


class AirChat(Harness[HarnessConfig]):
    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
        tool_interception_url: str | None = None,
    ) -> Any:
        system, prompt = self.resolve_prompt(data)
        messages: list[Any] = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or ()]
        client = AsyncOpenAI(base_url=endpoint, api_key=secret, http_client=HTTP)
        async with AsyncExitStack() as stack:
            places = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
            tools, dispatch, servers = await connect_mcp({"mcpServers": places}, stack)
            offered = {"tools": tools} if tools else {}
            while True:
                try:
                    reply = await client.chat.completions.create(model=ctx.model, messages=messages, **offered)
                except APIStatusError as error:
                    if trace.stop_condition is None and not is_context_overflow(error):
                        raise
                    return DONE  # the task has ended it, or the context has: its score is of what is there
                message = reply.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                if not message.tool_calls:
                    return DONE
                for call in message.tool_calls:
                    answer = await answered(call.function.name, call.function.arguments, dispatch, servers)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": answer})


async def answered(name: str, arguments: str, dispatch: dict[str, Any], servers: dict[str, Any]) -> Any:
    """What a tool says, or why it cannot be called so."""
    try:
        given = json.loads(arguments or "{}")
    except ValueError as error:
        return f"error: the arguments are no JSON: {error}"
    if name not in dispatch or not isinstance(given, dict):
        return f"error: unknown tool {name!r}" if name not in dispatch else "error: the arguments are no JSON object"
    return await call_mcp(servers, dispatch, name, given)
