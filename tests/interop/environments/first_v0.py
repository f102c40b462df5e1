"""Small environments in verifiers' first interface: one turn, several, tools, and every way to fail."""

import verifiers as vf
from datasets import Dataset

WORDS = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay", "kiwi", "lark")
STOCK = {"apples": 3, "pears": 4, "nuts": 20, "figs": 5, "beans": 7, "plums": 31}
PAIRS = (("apples", "pears"), ("nuts", "figs"), ("beans", "plums"))


def said(completion) -> str:
    return str(completion[-1]["content"] or "") if completion else ""


def correct(completion, answer, **kwargs) -> float:
    return float(answer in said(completion))


def brief(completion, **kwargs) -> float:
    return 1 / (1 + len(said(completion)))


def letters(completion, **kwargs) -> float:
    return len(said(completion))


def brittle(completion, **kwargs) -> float:
    return float(said(completion))


def judged(completion, **kwargs) -> float:
    raise ConnectionError("the judge does not answer")


def rows(words) -> Dataset:
    return Dataset.from_list([{"question": f"Say {word}.", "answer": word} for word in words])


def look_up(key: str) -> int:
    """How many there are.

    Args:
        key: what to count
    """
    return STOCK[key]


class Guessing(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        guess, wanted = int(messages[-1]["content"]), int(state["answer"])
        if guess == wanted:
            state["final_env_response"] = [{"role": "user", "content": "Right."}]
            return state["final_env_response"]
        return [{"role": "user", "content": "Higher." if guess < wanted else "Lower."}]


class Failing(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        if "crash" in state["answer"]:
            raise RuntimeError("a defect of the environment")
        raise vf.InfraError("its sandbox is lost")


class OwnReward(vf.Rubric):
    async def score_rollout(self, state):
        await super().score_rollout(state)
        state["reward"] = 7.0


def load_environment(kind: str = "words", **more) -> vf.Environment:
    if kind == "tools":
        pairs = [
            {"question": f"How many {a} and {b} are there together?", "answer": str(STOCK[a] + STOCK[b])}
            for a, b in PAIRS
        ]
        return vf.ToolEnv(dataset=Dataset.from_list(pairs), tools=[look_up], rubric=vf.Rubric([correct]), max_turns=5)
    if kind == "turns":
        numbers = [{"question": "Guess my number, from 0 to 15.", "answer": str(n)} for n in (3, 8, 11)]
        return Guessing(dataset=Dataset.from_list(numbers), rubric=vf.Rubric([correct]), max_turns=8)
    if kind in ("crash", "infra"):
        return Failing(dataset=rows([f"{kind}{i}" for i in range(3)]), rubric=vf.Rubric([correct]))
    rubrics = {
        "words": lambda: vf.Rubric([correct, brief, letters], [1.0, 0.5, 0.0]),
        "brittle": lambda: vf.Rubric([correct, brittle]),
        "judged": lambda: vf.Rubric([correct, judged]),
        "own": lambda: OwnReward([correct]),
        "judge": lambda: vf.JudgeRubric(),
    }
    return vf.SingleTurnEnv(dataset=rows(WORDS[:8]), eval_dataset=rows(WORDS[6:]), rubric=rubrics[kind](), **more)
