"""LangGraph's prebuilt agent, with one tool: it may look up what it is asked for, or guess."""

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent


def solve(task):
    """Of a question like "a-b" what is kept under a is wanted."""

    @tool
    def get(k: str) -> str:
        """What is kept under a letter."""
        return task["kept"].get(k, "nothing")

    agent = create_react_agent(ChatOpenAI(model="policy"), [get])
    final = agent.invoke({"messages": [{"role": "user", "content": task["question"]}]}, {"recursion_limit": 9})
    return float(final["messages"][-1].text.strip() == task["answer"])
