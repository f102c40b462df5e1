"""Agents of OpenAI's Agents SDK: by each of its two kinds of model, streamed, and with an agent as a tool."""

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    RunConfig,
    Runner,
    function_tool,
    set_default_openai_api,
)
from openai import AsyncOpenAI

INSTRUCTIONS = "You keep the stock of a shop. Look up what you are asked for, then answer with a number."
QUIET = RunConfig(tracing_disabled=True)  # traces go to OpenAI


def tool_for(task):
    @function_tool
    def look_up(key: str) -> int:
        """How many there are of something."""
        return task["stock"][key]

    return look_up


def agent_for(task, **options):
    return Agent(name="Keeper", instructions=INSTRUCTIONS, tools=[tool_for(task)], **options)


def score(task, said):
    return float(str(said).strip() == str(task["answer"]))


async def solve(task):
    """The model that the SDK takes by itself."""
    result = await Runner.run(agent_for(task), task["question"], run_config=QUIET)
    return score(task, result.final_output)


def solve_sync(task):
    result = Runner.run_sync(agent_for(task, model="gpt-4.1-mini"), task["question"], run_config=QUIET)
    return score(task, result.final_output)


async def solve_chat(task):
    model = OpenAIChatCompletionsModel(model="gpt-4.1-mini", openai_client=AsyncOpenAI())
    result = await Runner.run(agent_for(task, model=model), task["question"], run_config=QUIET)
    return score(task, result.final_output)


async def solve_chat_by_default(task):
    """The SDK's own model, by the other interface; a RunConfig keeps to what is set when it is made."""
    set_default_openai_api("chat_completions")
    result = await Runner.run(agent_for(task), task["question"], run_config=RunConfig(tracing_disabled=True))
    return score(task, result.final_output)


async def solve_stream(task):
    result = Runner.run_streamed(agent_for(task, model="gpt-4.1-mini"), task["question"], run_config=QUIET)
    async for _ in result.stream_events():
        pass
    return score(task, result.final_output)


async def solve_chat_stream(task):
    model = OpenAIChatCompletionsModel(model="gpt-4.1-mini", openai_client=AsyncOpenAI())
    result = Runner.run_streamed(agent_for(task, model=model), task["question"], run_config=QUIET)
    async for _ in result.stream_events():
        pass
    return score(task, result.final_output)


async def solve_with_helper(task):
    """An agent that asks another, which looks things up."""
    helper = agent_for(task, model="gpt-4.1-mini").as_tool("ask_keeper", "Asks who keeps the stock.", run_config=QUIET)
    chief = Agent(name="Chief", instructions="Ask the keeper.", tools=[helper], model="gpt-4.1-mini")
    result = await Runner.run(chief, task["question"], run_config=QUIET)
    return score(task, result.final_output)
