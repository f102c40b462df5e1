"""Agents of LangGraph: the prebuilt one, streamed and asynchronous too, and a graph of one's own."""

from typing import Annotated

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, create_react_agent, tools_condition
from typing_extensions import TypedDict

SYSTEM = "You keep the stock of a shop. Look up what you are asked for, then answer with a number."


def tools_for(task):
    @tool
    def look_up(key: str) -> int:
        """How many there are of something."""
        return task["stock"][key]

    return [look_up]


def agent_for(task, **options):
    model = ChatOpenAI(model="gpt-4.1-mini", temperature=0, **options)
    return create_react_agent(model, tools_for(task), prompt=SYSTEM)


def asked(task):
    return {"messages": [{"role": "user", "content": task["question"]}]}


def score(task, message):
    return float(message.text.strip() == str(task["answer"]))


def solve(task):
    return score(task, agent_for(task).invoke(asked(task))["messages"][-1])


async def solve_async(task):
    return score(task, (await agent_for(task).ainvoke(asked(task)))["messages"][-1])


def solve_stream(task):
    """Tokens as they come, and the state after each node."""
    last = None
    for mode, state in agent_for(task, streaming=True).stream(asked(task), stream_mode=["messages", "values"]):
        last = state["messages"][-1] if mode == "values" else last
    return score(task, last)


def solve_responses(task):
    """The same by OpenAI's other interface."""
    return score(task, agent_for(task, use_responses_api=True).invoke(asked(task))["messages"][-1])


class State(TypedDict):
    messages: Annotated[list, add_messages]


def solve_graph(task):
    tools = tools_for(task)
    model = ChatOpenAI(model="gpt-4.1-mini", max_retries=3, timeout=60).bind_tools(tools)

    def think(state: State):
        return {"messages": [model.invoke([SystemMessage(SYSTEM), *state["messages"]])]}

    graph = StateGraph(State)
    graph.add_node("think", think)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition)
    graph.add_edge("tools", "think")
    final = graph.compile().invoke({"messages": [HumanMessage(task["question"])]})
    return score(task, final["messages"][-1])
