"""Agents of OpenAI's own client: a loop of calls, in each of the ways in which it can ask."""

import asyncio
import json

from openai import AsyncOpenAI, OpenAI

MODEL = "gpt-4.1-mini"
SYSTEM = "You keep the stock of a shop. Look up what you are asked for, then answer with a number."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "How many there are of something.",
            "parameters": {
                "type": "object",
                "properties": {"key": {"type": "string"}},
                "required": ["key"],
                "additionalProperties": False,
            },
            "strict": True,
        },
    }
]


def look_up(task, call):
    key = json.loads(call.function.arguments)["key"]
    return {"role": "tool", "tool_call_id": call.id, "content": str(task["stock"][key])}


def opening(task):
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task["question"]}]


def score(task, text):
    return float((text or "").strip() == str(task["answer"]))


def solve(task):
    client = OpenAI()
    messages = opening(task)
    while True:
        completion = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, temperature=0.2)
        message = completion.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return score(task, message.content)
        messages += [look_up(task, call) for call in message.tool_calls]


async def solve_async(task, client):
    """With the client that it is given, and dicts for messages."""
    messages = opening(task)
    while True:
        completion = await client.chat.completions.create(
            model=MODEL, messages=messages, tools=TOOLS, tool_choice="auto", parallel_tool_calls=True
        )
        message = completion.choices[0].message
        messages.append(message.model_dump())
        if not message.tool_calls:
            return score(task, message.content)
        messages += [look_up(task, call) for call in message.tool_calls]


def solve_stream(task):
    """The pieces are put together by the program itself."""
    client = OpenAI()
    messages = opening(task)
    while True:
        content, calls = "", {}
        stream = client.chat.completions.create(
            model=MODEL, messages=messages, tools=TOOLS, stream=True, stream_options={"include_usage": True}
        )
        for chunk in stream:
            for choice in chunk.choices:
                content += choice.delta.content or ""
                for piece in choice.delta.tool_calls or []:
                    call = calls.setdefault(piece.index, {"id": "", "name": "", "arguments": ""})
                    call["id"] += piece.id or ""
                    call["name"] += piece.function.name or ""
                    call["arguments"] += piece.function.arguments or ""
        if not calls:
            return score(task, content)
        made = [
            {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
            for c in calls.values()
        ]
        messages.append({"role": "assistant", "content": content or None, "tool_calls": made})
        for call in calls.values():
            result = str(task["stock"][json.loads(call["arguments"])["key"]])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def solve_stream_helper(task):
    """The pieces are put together by the library."""
    client = OpenAI()
    messages = opening(task)
    while True:
        with client.chat.completions.stream(model=MODEL, messages=messages, tools=TOOLS) as stream:
            for _ in stream:
                pass
            message = stream.get_final_completion().choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return score(task, message.content)
        messages += [look_up(task, call) for call in message.tool_calls]


async def solve_side_by_side(task):
    """An assistant for each thing, all at once, and one that adds up what they say."""
    async with AsyncOpenAI(max_retries=4) as client:

        async def ask(text):
            messages = [{"role": "user", "content": text}]
            completion = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=20)
            return completion.choices[0].message.content

        counts = await asyncio.gather(*(ask(f"{key}: {count}") for key, count in task["stock"].items()))
        return score(task, await ask("Add: " + " ".join(counts)))


RESPONSES_TOOLS = [{"type": "function", **TOOLS[0]["function"]}]


def solve_responses(task):
    client = OpenAI()
    given = [{"role": "user", "content": task["question"]}]
    while True:
        response = client.responses.create(
            model=MODEL, instructions=SYSTEM, input=given, tools=RESPONSES_TOOLS, store=False
        )
        given += response.output
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return score(task, response.output_text)
        for call in calls:
            result = str(task["stock"][json.loads(call.arguments)["key"]])
            given.append({"type": "function_call_output", "call_id": call.call_id, "output": result})


def solve_responses_stream(task):
    client = OpenAI()
    given = [{"role": "user", "content": task["question"]}]
    while True:
        with client.responses.stream(
            model=MODEL, instructions=SYSTEM, input=given, tools=RESPONSES_TOOLS, store=False
        ) as stream:
            for _ in stream:
                pass
            response = stream.get_final_response()
        given += response.output
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return score(task, response.output_text)
        for call in calls:
            result = str(task["stock"][json.loads(call.arguments)["key"]])
            given.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
