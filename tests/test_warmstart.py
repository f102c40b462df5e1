"""The supervised start: demonstrations from scripts and from runs, through the same transcripts and masks."""

from __future__ import annotations

import asyncio
import errno
import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from support.tiny_runs import tiny_run

from airloop import start_checkpoint
from airloop import training as train
from airloop.config import WarmstartConfig, load_config
from airloop.errors import AirError
from airloop.files import write_json
from airloop.models.tiny import tiny_model
from airloop.runs.run import Run, read_trajectories
from airloop.runs.trajectory_file import from_json, to_json
from airloop.types import Message, Task, Times, Trajectory, Turn
from airloop.warmstart import (
    as_transcript,
    best_first,
    collect_demonstrations,
    demonstration_order,
    describe,
    warmstart,
    warmstart_directory,
)
from airloop.watch.display.display import Display
from airloop.watch.display.summary import gains, worse_start

FLAGS = {
    "model.name": "tiny:llama",
    "orchestrator.env.0.id": "arith",
    "seq_len": "64",
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


def test_how_good_the_demonstrations_are_is_said() -> None:
    some = [replace(demonstration("t", r, ["yes"]), metrics={"success": r}) for r in (1.0, 0.0, 0.5)]
    assert describe(some) == "3 demonstrations, success 0.50 on average"
    assert describe([demonstration("t", 1.0, ["yes"])] * 2) == "2 demonstrations"


def test_its_rate_may_fall(tmp_path: Path) -> None:
    directory = start(tmp_path, **{"warmstart.schedule": "linear", "warmstart.steps": "10"})
    rates = [json.loads(line)["lr"] for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert rates == pytest.approx([5e-3, *(1e-2 * (10 - i) / 9 for i in range(1, 10))])


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


class Shifted:
    """A tokenizer of another model: the same words, other numbers."""

    def __init__(self, tokenizer: Any) -> None:
        self._one = tokenizer
        self.stop_ids = tuple(i + 1 for i in tokenizer.stop_ids)
        self.render = tokenizer.render

    def encode(self, text: str) -> list[int]:
        return [i + 1 for i in self._one.encode(text)]

    def decode(self, ids: Sequence[int]) -> str:
        return self._one.decode([i - 1 for i in ids])


def test_B12_episodes_of_another_model_are_said_in_this_ones_tokens() -> None:
    """Its token ids are other words here, and were trained as they stood."""
    run, tokenizer = Run.open(tiny_run()), tiny_model("llama").tokenizer
    for trajectory in run.finished(0).values():
        assert as_transcript(trajectory, tokenizer) is trajectory
        other = Shifted(tokenizer)
        (branch,) = as_transcript(trajectory, other).branches
        said = other.decode([t for t, keep in zip(branch.tokens, branch.train, strict=True) if keep])
        assert said.replace("<|im_end|>", "") == "".join(turn.reply["content"] for turn in trajectory.turns)
        assert [t - 1 for t in branch.tokens][:8] == list(trajectory.branches[0].tokens[:8])


def test_a_reply_that_was_cut_off_teaches_nobody_to_end_there() -> None:
    run, tokenizer = Run.open(tiny_run()), tiny_model("llama").tokenizer
    trajectory = next(iter(run.finished(0).values()))
    (turn,) = trajectory.turns
    assert turn.sampled
    for stop in ("length", "text", "stop"):
        said = replace(turn, reply=Message(role="assistant", content="I was"), sampled=replace(turn.sampled, stop=stop))
        other = Shifted(tokenizer)
        (branch,) = as_transcript(replace(trajectory, turns=(said,)), other).branches
        trained = [t for t, keep in zip(branch.tokens, branch.train, strict=True) if keep]
        assert trained == [*other.encode("I was"), *(other.stop_ids[:1] if stop == "stop" else [])]


def test_a_source_that_has_changed_is_another_start(tmp_path: Path) -> None:
    source = shutil.copytree(tiny_run(), tmp_path / "source")
    flags = {**FLAGS, "output_dir": str(tmp_path / "runs"), "warmstart.source": str(source)}
    config = load_config([word for key, value in flags.items() for word in (f"--{key}", value)])
    before = warmstart_directory(config)
    assert warmstart_directory(config) == before
    more = next((source / "trajectories").rglob("*.json*"))
    more.write_bytes(more.read_bytes() + b" ")
    assert warmstart_directory(config) != before


@pytest.mark.slow
def test_a_resumed_run_keeps_the_start_that_it_began_with(tmp_path: Path) -> None:
    source = shutil.copytree(tiny_run(), tmp_path / "source")
    flags = {**FLAGS, "warmstart.steps": "1", "warmstart.source": str(source), "output_dir": str(tmp_path / "runs")}
    flags |= {"max_steps": "1", "orchestrator.batch_size": "8", "orchestrator.eval.num_examples": "2"}
    config = load_config([word for key, value in flags.items() for word in (f"--{key}", value)])
    quiet = Display(Console(quiet=True), quiet=True)
    run = train.start(config, quiet, skip_proofs=True).run
    (started,) = (tmp_path / "runs").glob("warmstart-*")
    (source / "trajectories" / "another").mkdir()
    (source / "trajectories" / "another" / "file.json").write_text("{}")
    config = config.model_copy(update={"max_steps": 2})
    assert train.start(config, quiet, resume=run.path, skip_proofs=True).run.status()["start"] == started.name
    assert list((tmp_path / "runs").glob("warmstart-*")) == [started]
    # One of an earlier version, which did not look at files and did not say what it began with.
    started = started.rename(warmstart_directory(config, files=False))
    write_json(run.path / "status.json", {k: v for k, v in run.status().items() if k != "start"})
    config = config.model_copy(update={"max_steps": 3})
    assert train.start(config, quiet, resume=run.path, skip_proofs=True).run.status()["start"] == started.name
    assert list((tmp_path / "runs").glob("warmstart-*")) == [started]


class Dying(Display):
    """Raises after so many supervised steps, as a machine that fails."""

    def __init__(self, steps: int) -> None:
        super().__init__(Console(quiet=True), quiet=True)
        self.said: list[str] = []
        self._left = steps

    def say(self, text: str) -> None:
        self.said.append(text)

    def advance(self, detail: str = "") -> None:
        self._left -= detail.startswith("loss")
        if self._left < 0:
            raise MemoryError


@pytest.mark.parametrize("train", ["lora", pytest.param("full", marks=pytest.mark.slow)])
def test_G2_a_start_that_was_killed_goes_on_with_the_steps_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train: str
) -> None:
    """No step is made twice, and what comes out has the same bits as one that was never killed."""
    monkeypatch.setattr(start_checkpoint, "EVERY_S", 0.0)
    monkeypatch.setattr(start_checkpoint, "SHARE", 0.0)
    torch.backends.mkldnn.set_flags(False)  # the first bf16 product would, where a CPU has no instructions for it
    changes = {"warmstart.steps": "7", "warmstart.schedule": "linear", "warmstart.episodes": "8"}
    changes |= {"warmstart.batch_size": "4", "trainer.model.train": train, "model.dtype": "bfloat16"}
    whole = start(tmp_path / "whole", **changes)
    flags = {**FLAGS, **changes, "output_dir": str(tmp_path / "killed")}
    config = load_config([word for key, value in flags.items() for word in (f"--{key}", value)])
    keep = tmp_path / "keep"
    for steps in (2, 3):
        with pytest.raises(MemoryError):
            asyncio.run(warmstart(config, Dying(steps), keep=keep))
    (kept,) = keep.glob("*/step_*")
    assert kept.name == "step_5" and {f.name for f in kept.iterdir()} == {"learner.safetensors", "progress.json"}
    last = Dying(2)
    made, _ = asyncio.run(warmstart(config, last, keep=keep))
    assert not keep.exists() and not any("cannot be used" in text for text in last.said)
    files = [*whole.glob("*/*.safetensors")]
    assert files
    for file in files:
        assert file.read_bytes() == (made / file.relative_to(whole)).read_bytes()
    lines = [[json.loads(line) for line in (d / "metrics.jsonl").read_text().splitlines()] for d in (whole, made)]
    timeless = [[{k: v for k, v in m.items() if k not in ("seconds", "tokens_per_s")} for m in file] for file in lines]
    assert timeless[0] == timeless[1] and len(timeless[0]) == 7


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def with_master(file: Path) -> None:
    """As of a GPU's bfloat16."""
    tensors = load_file(file)
    save_file({**tensors, "master.0": next(iter(tensors.values())).clone()}, file)


@pytest.mark.parametrize("spoil", [cut, with_master])
def test_what_is_kept_of_a_start_and_cannot_be_used_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(start_checkpoint, "EVERY_S", 0.0)
    monkeypatch.setattr(start_checkpoint, "SHARE", 0.0)
    flags = {**FLAGS, "warmstart.steps": "3", "warmstart.episodes": "8", "output_dir": str(tmp_path / "out")}
    config = load_config([word for key, value in flags.items() for word in (f"--{key}", value)])
    with pytest.raises(MemoryError):
        asyncio.run(warmstart(config, Dying(2), keep=tmp_path / "keep"))
    (kept,) = (tmp_path / "keep").glob("*/step_2/learner.safetensors")
    spoil(kept)
    last = Dying(1)
    with pytest.raises(MemoryError):  # what it makes now is the latest that there is
        asyncio.run(warmstart(config, last, keep=tmp_path / "keep"))
    assert [path.name for path in (tmp_path / "keep").glob("*/step_*")] == ["step_1"]
    assert any("step_2 cannot be used" in text and "made again" in text for text in last.said)
    last = Dying(2)
    made, _ = asyncio.run(warmstart(config, last, keep=tmp_path / "keep"))
    assert len((made / "metrics.jsonl").read_text().splitlines()) == 3
    assert not any("cannot be used" in text for text in last.said)


def test_a_start_goes_on_where_the_disk_has_no_room_for_what_is_kept_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(start_checkpoint, "EVERY_S", 0.0)
    monkeypatch.setattr(start_checkpoint, "_write", full)
    flags = {**FLAGS, "warmstart.steps": "3", "warmstart.episodes": "8", "output_dir": str(tmp_path / "out")}
    config = load_config([word for key, value in flags.items() for word in (f"--{key}", value)])
    told = Dying(3)
    made, _ = asyncio.run(warmstart(config, told, keep=tmp_path / "keep"))
    assert len((made / "metrics.jsonl").read_text().splitlines()) == 3 and not (tmp_path / "keep").exists()
    assert sum("begins anew: [Errno 28] No space left" in text for text in told.said) == 1


def short_run(directory: Path, started: bool = True, **changes: str) -> Run:
    flags = {key: value for key, value in FLAGS.items() if started or not key.startswith("warmstart.")}
    flags |= {"output_dir": str(directory), "max_steps": "1", "orchestrator.batch_size": "8"}
    flags |= {"orchestrator.eval.num_examples": "6", "orchestrator.eval.temperature": "0", **changes}
    config = load_config([word for key, value in flags.items() for word in (f"--{key}", value)])
    return train.start(config, Display(Console(quiet=True), quiet=True), skip_proofs=True).run


def replies(run: Run, name: str) -> dict[str, list[str]]:
    return {t.task.id: [str(turn.reply["content"]) for turn in t.turns] for t in run.evaluation(name)}


@pytest.mark.long
def test_the_model_itself_is_judged_beside_its_start(tmp_path: Path) -> None:
    """With its adapter away it says what it says without a start, and the start is there again afterwards."""
    asked = short_run(tmp_path / "asked", **{"orchestrator.eval.base": "true"})
    plain = short_run(tmp_path / "plain")
    without = short_run(tmp_path / "without", started=False)
    assert replies(asked, "base") == replies(without, "before")
    assert replies(asked, "before") == replies(plain, "before") != replies(asked, "base")
    assert [line["name"] for line in asked.metrics("eval")] == ["base", "before", "after"]
    assert [line["name"] for line in plain.metrics("eval")] == ["before", "after"]
    assert "of the model itself" in (asked.path / "summary.txt").read_text(encoding="utf-8")
    assert "of the model itself" not in (plain.path / "summary.txt").read_text(encoding="utf-8")
    longer = asked.config.model_copy(update={"max_steps": 2})
    train.start(longer, Display(Console(quiet=True), quiet=True), resume=asked.path, skip_proofs=True)
    assert [line["name"] for line in Run.open(asked.path).metrics("eval")].count("base") == 1


def test_a_start_that_made_the_model_worse_is_said() -> None:
    def side(*successes: float) -> list[Trajectory]:
        rows = [demonstration(str(i), value, ["a"]) for i, value in enumerate(successes)]
        return [replace(row, metrics={"success": row.reward}) for row in rows]

    run = Run.open(tiny_run())
    good, bad = side(*[1.0] * 12, *[0.0] * 8), side(*[1.0] * 2, *[0.0] * 18)
    said = worse_start(gains(run, good, bad)[0])
    assert said.startswith("the supervised start made the model worse: ") and "0.600" in said and "0.100" in said
    assert worse_start(gains(run, bad, good)[0]) == worse_start(gains(run, good, good)[0]) == ""


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "has no effect without [warmstart]"),
        (["--warmstart.steps", "1", "--trainer.model.train", "full"], 'train = "full"'),
        (["--warmstart.steps", "1", "--budget.minutes", "2"], "budget.minutes"),
        (["--warmstart.steps", "1", "--inference.backend", "vllm"], 'backend = "embedded"'),
    ],
)
def test_the_model_itself_is_not_asked_where_it_cannot_be(flags: list[str], words: str) -> None:
    asked = ["--model.name", "tiny:llama", "--orchestrator.env.0.id", "arith", "--orchestrator.eval.base", "true"]
    with pytest.raises(AirError, match=re.escape(words)):
        load_config([*asked, *flags])


def test_best_first_takes_turns_between_tasks() -> None:
    found = best_first(
        [demonstration(t, r, []) for t, r in [("a", 9.0), ("a", 8.0), ("b", 1.0), ("a", 7.0), ("b", 2.0)]]
    )
    assert [(t.task.id, t.reward) for t in found] == [("a", 9.0), ("b", 2.0), ("a", 8.0), ("b", 1.0), ("a", 7.0)]


def test_batches_are_seeded_and_every_demonstration_comes_once_an_epoch() -> None:
    pool = [demonstration(f"t{i % 4}", float(i), []) for i in range(16)]
    one, two, other = ([*islice(demonstration_order(pool, 4, seed), 8)] for seed in (3, 3, 4))
    assert one == two != other
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
