"""Agents of Anthropic's client: a loop of calls, whole, streamed, asynchronous, and the library's own runner."""

from anthropic import Anthropic, AsyncAnthropic, beta_tool

MODEL = "claude-sonnet-4-5"
SYSTEM = "You keep the stock of a shop. Look up what you are asked for, then answer with a number."
TOOLS = [
    {
        "name": "look_up",
        "description": "How many there are of something.",
        "input_schema": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    }
]


def asked(messages):
    return {"model": MODEL, "max_tokens": 300, "system": SYSTEM, "messages": messages, "tools": TOOLS}


def results(task, message):
    """What was looked up; nothing where the message has no calls."""
    return [
        {"type": "tool_result", "tool_use_id": block.id, "content": str(task["stock"][block.input["key"]])}
        for block in message.content
        if block.type == "tool_use"
    ]


def score(task, message):
    text = "".join(block.text for block in message.content if block.type == "text")
    return float(text.strip() == str(task["answer"]))


def solve(task):
    client = Anthropic()
    messages = [{"role": "user", "content": task["question"]}]
    while True:
        message = client.messages.create(**asked(messages))
        if message.stop_reason != "tool_use":
            return score(task, message)
        messages.append({"role": "assistant", "content": message.content})
        messages.append({"role": "user", "content": results(task, message)})


async def solve_async(task):
    """With the parts of the prompt that Anthropic's users mark as worth keeping."""
    client = AsyncAnthropic()
    system = [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]
    messages = [{"role": "user", "content": task["question"]}]
    while True:
        message = await client.messages.create(**{**asked(messages), "system": system})
        if message.stop_reason != "tool_use":
            return score(task, message)
        messages.append({"role": "assistant", "content": [block.model_dump() for block in message.content]})
        messages.append({"role": "user", "content": results(task, message)})


def solve_stream(task):
    client = Anthropic()
    messages = [{"role": "user", "content": task["question"]}]
    while True:
        with client.messages.stream(**asked(messages)) as stream:
            said = "".join(stream.text_stream)
            message = stream.get_final_message()
        if message.stop_reason != "tool_use":
            return score(task, message) * float(said.strip() == str(task["answer"]))
        messages.append({"role": "assistant", "content": message.content})
        messages.append({"role": "user", "content": results(task, message)})


def solve_runner(task):
    """The loop is the library's."""

    @beta_tool
    def look_up(key: str) -> str:
        """How many there are of something.

        Args:
            key: what of
        """
        return str(task["stock"][key])

    runner = Anthropic().beta.messages.tool_runner(
        model=MODEL,
        max_tokens=300,
        tools=[look_up],
        messages=[{"role": "user", "content": task["question"]}],
    )
    return score(task, runner.until_done())
