"""The supervised start: demonstrations from scripts and from runs, through the same transcripts and masks."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from rich.console import Console
from tiny_runs import tiny_run

from airloop.config import WarmstartConfig, load_config
from airloop.errors import AirError
from airloop.models.tiny import tiny_model
from airloop.run import Run, read_trajectories
from airloop.trajectory_file import from_json, to_json
from airloop.types import Message, Task, Times, Trajectory, Turn
from airloop.warmstart import as_transcript, best_first, collect_demonstrations, demonstration_order, warmstart
from airloop.watch.display import Display

FLAGS = {
    "model.name": "tiny:llama",
    "orchestrator.env.0.id": "arith",
    "orchestrator.seq_len": "64",
    "orchestrator.sampling.max_tokens": "4",
    "warmstart.steps": "30",
    "warmstart.episodes": "32",
    "warmstart.batch_size": "8",
    "warmstart.lr": "1e-2",
}


def start(directory: Path, **changes: str) -> Path:
    flags = {**FLAGS, "output_dir": str(directory), **changes}
    config = load_config([word for key, value in flags.items() for word in (f"--{key}", value)])
    return asyncio.run(warmstart(config, Display(Console(quiet=True), quiet=True)))[0]


def demonstration(task: str, reward: float, replies: list[str]) -> Trajectory:
    turns = tuple(
        Turn(
            (Message(role="user", content=f"question {i}"),),
            Message(role="assistant", content=r),
            None,
            (),
            (),
            Times(),
        )
        for i, r in enumerate(replies)
    )
    empty = tuple({} for _ in replies)
    return Trajectory(
        f"{task}_{reward}", Task("e", task, "train"), 0, 0, turns, (), "done", {}, empty, {}, reward, 0.0, 0.0
    )


def test_scripted_demonstrations_are_learned_kept_and_reused(tmp_path: Path) -> None:
    directory = start(tmp_path)
    done = json.loads((directory / "done.json").read_text())
    assert done["last_loss"] < 0.5 * done["first_loss"]
    assert (directory / "adapter" / "adapter_config.json").is_file()
    assert len(read_trajectories(directory / "demonstrations")) == 32
    stamp = (directory / "done.json").stat().st_mtime_ns
    assert start(tmp_path) == directory and (directory / "done.json").stat().st_mtime_ns == stamp
    assert start(tmp_path, **{"warmstart.lr": "2e-2"}) != directory  # other settings, another start


def test_a_demonstration_trains_its_replies_and_their_stop_tokens_only() -> None:
    tokenizer = tiny_model("llama").tokenizer
    (branch,) = as_transcript(demonstration("t", 1.0, ["yes", "no"]), tokenizer).branches
    trained = [t for t, keep in zip(branch.tokens, branch.train, strict=True) if keep]
    assert tokenizer.decode(trained) == "yes<|im_end|>no<|im_end|>"
    assert "question 1" in tokenizer.decode(list(branch.tokens))


def test_a_runs_best_episodes_are_demonstrations_with_their_own_tokens(tmp_path: Path) -> None:
    run = Run.open(tiny_run())
    directory = start(tmp_path, **{"warmstart.source": str(run.path), "warmstart.episodes": "6"})
    used = read_trajectories(directory / "demonstrations")
    sampled = {t.id: t for step in range(run.config.max_steps) for t in run.finished(step).values()}
    assert len(used) == 6 and all(sampled[t.id].branches == t.branches for t in used)


def test_best_first_takes_turns_between_tasks() -> None:
    found = best_first(
        [demonstration(t, r, []) for t, r in [("a", 9.0), ("a", 8.0), ("b", 1.0), ("a", 7.0), ("b", 2.0)]]
    )
    assert [(t.task.id, t.reward) for t in found] == [("a", 9.0), ("b", 2.0), ("a", 8.0), ("b", 1.0), ("a", 7.0)]


def test_batches_are_seeded_and_every_demonstration_comes_once_an_epoch() -> None:
    pool = [demonstration(f"t{i % 4}", float(i), []) for i in range(16)]
    one, two = (demonstration_order(pool, 4, 8, seed=3) for _ in range(2))
    assert one == two and one != demonstration_order(pool, 4, 8, seed=4)
    assert sorted(t.reward for batch in one[:4] for t in batch) == sorted(t.reward for t in pool)


def test_no_demonstration_left_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(AirError, match=r"none of them scored warmstart.min_reward = 2.0"):
        start(tmp_path, **{"warmstart.min_reward": "2.0"})
    assert not list(tmp_path.glob("warmstart-*"))


def test_demonstrations_with_tools_start_from_the_prompt_that_training_shows(tmp_path: Path) -> None:
    """Tools are part of the prompt: a start without them would teach another task."""
    config = load_config(
        ["--model.name", "tiny:llama", "--orchestrator.env.0.id", "musique", "--seq_len", "8000"]
    ).model_copy(update={"warmstart": WarmstartConfig(episodes=4)})
    found = asyncio.run(collect_demonstrations(config, Display(Console(quiet=True), quiet=True)))[0]
    assert {tool["function"]["name"] for tool in found.tools} >= {"retrieve_documents", "complete"}
    tokenizer = tiny_model().tokenizer
    prompt = tokenizer.encode(tokenizer.render(list(found.turns[0].shown), list(found.tools), True))
    assert list(as_transcript(found, tokenizer).branches[0].tokens[: len(prompt)]) == prompt
    path = tmp_path / "one.json"
    path.write_text(json.dumps(to_json(found)))
    assert from_json(json.loads(path.read_text())).tools == found.tools
