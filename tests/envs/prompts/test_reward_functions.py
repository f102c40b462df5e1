"""Reward functions in TRL's form: what they are given, what they may give, and what is said of those that fail."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from airloop.config import load_config
from airloop.envs.base import load_environment
from airloop.envs.prompts import PromptsEnv
from airloop.envs.script import Script
from airloop.errors import AirError
from airloop.rollout.agents import ModelAgent
from airloop.rollout.episode import EpisodeDefect, run_episode
from airloop.types import Message, Sampled, Trajectory

ROWS = [{"question": f"{n} + 1 =", "answer": str(n + 1), "level": n % 3} for n in range(40)]
CHAT = [{"prompt": [{"role": "user", "content": row["question"]}], "answer": row["answer"]} for row in ROWS]


class Sampler(ModelAgent):
    """As the policy under training: its replies have tokens."""

    def __init__(self, text: str, ids: tuple[int, ...]) -> None:
        self.text, self.ids = text, ids

    async def reply(self, messages: Any, tools: Any) -> Message:
        self.sampled = Sampled(self.ids, (0.0,) * len(self.ids), "stop", 0)
        return Message(role="assistant", content=self.text)


@pytest.fixture
def make(tmp_path: Path) -> Any:
    def environment(code: str, rewards: str = "reward_of", rows: Any = ROWS, **args: Any) -> PromptsEnv:
        (tmp_path / "rewards.py").write_text(code)
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        named = [f"{tmp_path}/rewards.py:{name}" for name in rewards.split()]
        given = {"dataset": f"{tmp_path}/rows.jsonl", "rewards": named, "prompt": "question", **args}
        return load_environment("prompts", given)  # type: ignore[return-value]

    return environment


def play(env: PromptsEnv, agent: Any, task: int = 0) -> Trajectory:
    chosen = env.tasks("train")[task]
    return asyncio.run(run_episode(env, chosen, agent, id="1", seed=0))


SEEN = """\
seen = []
def reward_of(prompts, completions, **columns):
    seen.append((prompts, completions, columns))
    return [0.5 for _ in completions]
"""


def test_a_text_is_answered_by_a_text_and_columns_are_lists(make: Any) -> None:
    env = make(SEEN)
    played = play(env, Sampler("7", (5, 6)))
    prompts, completions, columns = env.functions[0].function.__globals__["seen"][-1]
    row = played.task.payload["columns"]
    assert prompts == [row["question"]] and completions == ["7"] and columns["completion_ids"] == [[5, 6]]
    assert columns["answer"] == [row["answer"]] and columns["level"] == [row["level"]]
    assert played.rewards == {"reward_of": 0.5} and played.metrics["success"] == played.reward == 0.5
    assert [m["content"] for m in played.turns[0].shown] == [row["question"]]


def test_messages_are_answered_by_a_message(make: Any) -> None:
    env = make(SEEN, rows=CHAT, prompt="prompt", system="Be brief.")
    played = play(env, Script("7"))
    prompts, completions, columns = env.functions[0].function.__globals__["seen"][-1]
    assert prompts == [played.task.payload["prompt"]] and completions == [[{"role": "assistant", "content": "7"}]]
    assert columns.keys() == {"answer"}  # neither the prompts nor, of a script, tokens
    assert [m["role"] for m in played.turns[0].shown] == ["system", "user"]


def test_a_function_is_given_what_it_takes(make: Any) -> None:
    code = "def reward_of(completions, answer, extra=3): return [float(completions == answer) * extra / 3]\n"
    env = make(code, answer="answer")
    assert play(env, env.scripted("oracle", env.tasks("train")[1], 0), 1).reward == 1.0


def test_an_async_function_keeps_its_client_whoever_asks(make: Any) -> None:
    """In the trial, in a run and in the next: a client that is kept open belongs to one event loop."""
    code = """\
import asyncio
loops = set()
async def reward_of(completions, **columns):
    loops.add(asyncio.get_running_loop())
    await asyncio.sleep(0)
    return [float(len(said) == 2) for said in completions]
"""
    env = make(code)
    assert [play(env, Script(text)).reward for text in ("ab", "abc")] == [1.0, 0.0]
    assert len(env.functions[0].function.__globals__["loops"]) == 1


def test_a_plain_function_may_run_a_loop_and_set_an_alarm(make: Any) -> None:
    """As under TRL, which calls it in the main thread with no loop running."""
    code = """\
import asyncio, signal
async def judge(said): return float(said == "ab")
def reward_of(completions, **columns):
    signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGALRM))
    return [asyncio.run(judge(said)) for said in completions]
"""
    env = make(code)
    assert [play(env, Script(text)).reward for text in ("ab", "abc")] == [1.0, 0.0]


def test_a_file_that_came_with_a_run_is_never_executed(make: Any, tmp_path: Path) -> None:
    for name in ("status.json", "config.toml"):
        (tmp_path / name).write_text("")
    with pytest.raises(AirError, match="a run's files are never executed"):
        make(f"open({str(tmp_path / 'harmed')!r}, 'w')\ndef reward_of(completions): return [1.0]\n")
    assert not (tmp_path / "harmed").exists()


def test_none_is_not_applicable_and_success_is_the_first_that_applies(make: Any) -> None:
    code = """\
def even(completions, level, **columns): return [1.0 if n != 1 else None for n in level]
def odd(completions, level, **columns): return [0.25 if n == 1 else None for n in level]
"""
    env = make(code, "even odd", success=["even", "odd"])
    tasks = env.tasks("train")
    odd = next(i for i, task in enumerate(tasks) if task.payload["columns"]["level"] == 1)
    even = next(i for i, task in enumerate(tasks) if task.payload["columns"]["level"] == 0)
    assert env.success == "success" and play(env, Script(""), odd).metrics["success"] == 0.25
    assert play(env, Script(""), even).rewards == {"even": 1.0}
    alone = make(code, "even odd")
    assert "name all functions that decide it" in play(alone, Script(""), odd).error


def test_weights_choose_what_is_paid_and_the_rest_is_measured(make: Any) -> None:
    code = "def a(completions): return [1]\ndef b(completions): return [True]\n"
    env = make(code, "a b")
    assert play(env, Script("")).reward == 2.0
    env.weigh({"b": 0.5})
    played = play(env, Script(""))
    assert played.rewards == {"b": 1.0} and played.reward == 0.5 and played.metrics["a"] == 1.0
    with pytest.raises(AirError, match="no reward component 'c'"):
        env.weigh({"c": 1.0})


def test_what_reads_tokens_is_asked_only_of_models(make: Any) -> None:
    code = "def a(completions): return [1.0]\ndef ids(completion_ids): return [len(ids) for ids in completion_ids]\n"
    env = make(code, "a ids")
    assert env.beyond_scripts == ["ids"]
    assert play(env, Script("x")).rewards == {"a": 1.0}
    assert play(env, Sampler("x", (1, 2, 3))).rewards == {"a": 1.0, "ids": 3.0}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "return [1 / len(completions[0])]",
            "raised ZeroDivisionError: division by zero (FILE:2), for a trial on row ",
        ),
        ("return [1.0, 2.0]", "returned 2 rewards for 1 completion (FILE:1)"),
        ("return []", "returned 0 rewards for 1 completion"),
        ("return ['good']", "returned a str ('good'), not a number"),
        ("return [float('nan')]", "returned nan, where a reward is a finite number, or None"),
        ("return [float('-inf')]", "returned -inf"),
        ("return 1.0", "returned a float ('1.0'), not a list"),
        ("return None", "returned None, not a list"),
        ("return [None]", "None of the reward functions (reward_of) applies to a trial on row "),
        ("return [2.5]", "is the success, a share from 0 to 1; it gave 2.5"),
    ],
)
def test_functions_are_tried_before_anything_is_loaded(make: Any, tmp_path: Path, body: str, said: str) -> None:
    env = make(f"def reward_of(completions, **columns):\n    {body}\n")
    for asked in (lambda: env.weigh({"reward_of": 1.0}), lambda: env.tasks("train")):
        with pytest.raises(AirError) as refused:
            asked()
        assert said.replace("FILE", f"{tmp_path}/rewards.py") in refused.value.problem
    (trouble,) = env.check_tasks()
    assert trouble.severity == "fail" and said.split(" (FILE")[0] in trouble.seen


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_trouble_with_a_reply_is_infrastructure_and_never_a_reward(make: Any, tmp_path: Path, kind: str) -> None:
    code = f"{kind} reward_of(completions, **columns):\n    return [int(s) if s == 'x' else 0 for s in completions]\n"
    played = play(make(code), Script("x"))
    assert played.ending == "infra_error" and not played.rewards
    assert "reward_of raised ValueError: invalid literal" in played.error
    assert f"({tmp_path}/rewards.py:2), for row " in played.error and "of rows.jsonl, reply 'x'" in played.error


def test_a_success_that_leaves_its_bounds_stops_the_run(make: Any) -> None:
    with pytest.raises(EpisodeDefect) as stopped:
        play(make("def reward_of(completions): return [float(len(completions[0]) // 10)]"), Script("x" * 20))
    assert "it gave 2" in stopped.value.problem and 'success = "none"' in stopped.value.fix
    free = make("def reward_of(completions): return [float(len(completions[0]) // 10)]", success="none")
    assert free.success is None and play(free, Script("x" * 20)).reward == 2.0


@pytest.mark.parametrize(
    ("code", "rewards", "problem", "fix"),
    [
        ("def correct(completions): ...", "corect", "has no function 'corect'", "rewards.py:correct"),
        ("def a(c): ...\ndef b(c): ...", "zzz", "has no function 'zzz'", "it has: a, b"),
        ("correct = 3", "correct", "is a int, not a function", "define it as"),
        ("import nothing_such", "correct", "rewards.py:1 cannot be imported", "mend the file"),
        ("def turns(completions): ...", "turns", "has the name of a metric", "my_turns = turns"),
        ("def a(completions): ...", "a a", "Two reward functions are called 'a'", "rename"),
    ],
)
def test_files_and_names_are_looked_at_with_the_arguments(
    make: Any, code: str, rewards: str, problem: str, fix: str
) -> None:
    with pytest.raises(AirError) as refused:
        make(code, rewards)
    assert problem in str(refused.value) and fix in str(refused.value)


@pytest.mark.parametrize(
    ("code", "problem", "fix"),
    [
        ("def reward_of(completions, anwser): ...", "needs 'anwser'", "did you mean 'answer'?"),
        ("def reward_of(completions, trainer_state): ...", "an object of TRL's trainer", "trainer_state=None"),
        ("def reward_of(completions, /): ...", "by its place only", "leave out the `/`"),
    ],
)
def test_what_a_function_needs_has_to_be_there(make: Any, code: str, problem: str, fix: str) -> None:
    with pytest.raises(AirError) as refused:
        make(code).tasks("train")
    assert problem in refused.value.problem and fix in refused.value.fix


def test_a_misspelt_name_is_told_with_its_line_in_the_config(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text("def correct(completions): ...\n")
    args = 'args = { dataset = "rows.jsonl", rewards = ["./rewards.py:corect"] }'
    (tmp_path / "run.toml").write_text(f'[[orchestrator.env]]\nid = "prompts"\n{args}\n')
    with pytest.raises(AirError, match=r"run.toml:3: .*did you mean .*/rewards.py:correct"):
        load_config(["@", str(tmp_path / "run.toml")])
    (tmp_path / "run.toml").write_text('[[orchestrator.env]]\nid = "prompts"\nargs = { prompt = "q" }\n')
    with pytest.raises(AirError, match=r"run.toml:3: environment 'prompts' needs the argument 'dataset'"):
        load_config(["@", str(tmp_path / "run.toml")])


@pytest.mark.slow
def test_trls_own_functions_are_used_as_they_are(make: Any) -> None:
    pytest.importorskip("trl")
    code = "from trl.rewards import get_soft_overlong_punishment, think_format_reward\n"
    code += "overlong = get_soft_overlong_punishment(max_completion_len=10, soft_punish_cache=4)\n"
    env = make(code, "think_format_reward overlong", rows=CHAT, prompt="prompt")
    assert play(env, Sampler("<think>\na\n</think>\nb", tuple(range(8)))).rewards == {
        "think_format_reward": 1.0,
        "overlong": -0.5,
    }
    assert play(env, Sampler("b", (1,))).rewards == {"think_format_reward": 0.0, "overlong": 0.0}
