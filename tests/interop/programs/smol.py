"""Agents of smolagents: one that calls tools, one that writes code."""

from smolagents import CodeAgent, OpenAIServerModel, Tool, ToolCallingAgent


class LookUp(Tool):
    name = "look_up"
    description = "How many there are of something."
    inputs = {"key": {"type": "string", "description": "what of"}}  # noqa: RUF012
    output_type = "integer"

    def __init__(self, stock):
        super().__init__()
        self.stock = stock

    def forward(self, key: str) -> int:
        return self.stock[key]


def score(task, said):
    return float(str(said).strip() == str(task["answer"]))


def solve(task):
    agent = ToolCallingAgent(tools=[LookUp(task["stock"])], model=OpenAIServerModel("gpt-4.1-mini"), max_steps=5)
    return score(task, agent.run(task["question"]))


def solve_stream(task):
    model = OpenAIServerModel("gpt-4.1-mini")
    agent = ToolCallingAgent(tools=[LookUp(task["stock"])], model=model, max_steps=5, stream_outputs=True)
    return score(task, agent.run(task["question"]))


def solve_code(task):
    agent = CodeAgent(tools=[LookUp(task["stock"])], model=OpenAIServerModel("gpt-4.1-mini"), max_steps=5)
    return score(task, agent.run(task["question"]))
