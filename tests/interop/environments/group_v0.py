"""Small environments in verifiers' first interface whose rubrics score the rollouts of a row together."""

import verifiers as vf
from datasets import Dataset

WORDS = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen")
CALLS = {"flaky": 0}


def said(completion) -> str:
    return str(completion[-1]["content"] or "") if completion else ""


def correct(completion, answer, **kwargs) -> float:
    return float(answer in said(completion))


def brittle(completion, **kwargs) -> float:
    return float(len(said(completion)) // (len(said(completion)) - 4))


async def briefest(completions, **kwargs) -> list[float]:
    """The share of the others that said more."""
    sizes = [len(said(completion)) for completion in completions]
    return [sum(other > own for other in sizes) / max(len(sizes) - 1, 1) for own in sizes]


def members(states) -> list[float]:
    return [float(len(states)) for _ in states]


def fails(completions) -> list[float]:
    raise ValueError("a defect of the comparison")


def flaky(completions) -> list[float]:
    CALLS["flaky"] += 1
    if CALLS["flaky"] == 1:
        raise ValueError("only at first")
    return [1.0 for _ in completions]


def short(completions) -> list[float]:
    return [1.0]


class Shares(vf.Rubric):
    """A way of its own to score a group, with functions that say nothing of it."""

    async def score_group(self, states):
        await super().score_group(states)
        total = sum(state["reward"] for state in states) or 1.0
        for state in states:
            state["reward"] /= total


class Failing(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        raise vf.InfraError("its sandbox is lost")


def rows(words) -> Dataset:
    return Dataset.from_list([{"question": f"Say {word}.", "answer": word} for word in words])


def load_environment(kind: str = "group") -> vf.Environment:
    both = {"group": vf.Rubric([correct, briefest, members], [1.0, 0.5, 0.0])}
    rubrics = {
        "fails": lambda: vf.Rubric([correct, fails]),
        "flaky": lambda: vf.Rubric([correct, flaky]),
        "short": lambda: vf.Rubric([correct, short]),
        "brittle": lambda: vf.Rubric([correct, brittle, briefest]),
        "shares": lambda: Shares([correct, briefest]),
        "two": lambda: vf.RubricGroup([vf.Rubric([correct]), vf.Rubric([briefest], [0.5])]),
    }
    if kind == "infra":
        return Failing(dataset=rows(WORDS), rubric=both["group"])
    if kind == "mixed":
        plain = vf.SingleTurnEnv(dataset=rows(WORDS[:4]), rubric=vf.Rubric([correct]))
        other = vf.SingleTurnEnv(dataset=rows(WORDS[4:]), rubric=both["group"])
        return vf.EnvGroup([plain, other], ["plain", "other"])
    return vf.SingleTurnEnv(dataset=rows(WORDS), rubric=both[kind] if kind in both else rubrics[kind]())
