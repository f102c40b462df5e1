"""[H8] A rank that lives and does not come: the run ends with where it stands, and goes on later. Slow is not broken:
what a rank may take follows from what ranks took before, and from whether it works."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import resource
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support import warm_process
from support.rank_runs import FLAGS, alive, ranks_of, the_run, words

from airloop.engine.base import Sampling
from airloop.engine.vllm.reply import Reply
from airloop.launch.monitor import innermost
from airloop.launch.stillness import SILENT_S, STOP_STILL_S, STOP_WORKING_S, TIMES, ProcessLook, Stillness
from airloop.pulse import Pulse, PulseThread, where
from airloop.rank import Reporter
from airloop.waits import COMPUTING, RANKS, WAITS, waiting

COMMAND = ["train", "--skip-proofs"]
WAIT_S = 600.0  # for what comes, however slow the machine: nothing of it is measured
TIMEOUT_S = 30.0
ADVANTAGE = """
import pathlib, threading, torch.distributed

def centred(rewards, lengths):
    if pathlib.Path("{trigger}").exists() and torch.distributed.get_rank() == 1:
        threading.Event().wait()  # for ever
    return rewards - rewards.mean()
"""


class Started:
    """Two ranks on gloo that train."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.trigger = folder, folder / "hang"
        (folder / "mine.py").write_text(ADVANTAGE.format(trigger=self.trigger))
        more = {
            "output_dir": str(folder / "out"),
            "trainer.processes": "2",
            "trainer.rank_timeout_s": str(TIMEOUT_S),
            "trainer.loss.advantage": f"{folder / 'mine.py'}:centred",
            "orchestrator.eval.interval": "0",
            "max_steps": "4000",
            "ckpt.interval": "1",
        }
        self.process = warm_process.Process([*COMMAND, *words({**FLAGS, **more})], stderr=True)

    def until_trained(self, steps: int) -> None:
        until = time.monotonic() + WAIT_S
        while len(list(self.folder.glob("out/exp*/tokens/step_*"))) < steps:
            assert self.process.poll() is None, self.process.communicate(WAIT_S)[1]
            assert time.monotonic() < until
            time.sleep(0.05)

    @property
    def ranks(self) -> dict[int, int]:
        return ranks_of(self.folder / "out")

    def end(self) -> str:
        return self.process.communicate(WAIT_S)[1]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    run = Started(tmp_path)
    yield run
    if run.process.poll() is None:
        run.process.kill()
        run.process.wait()


def resume(started: Started) -> None:
    run = the_run(started.folder / "out")
    assert run.status()["status"] in ("failed", "stopped")
    steps = len(run.metrics("train"))
    text = (run.path / "config.toml").read_text()
    (run.path / "config.toml").write_text(text.replace("max_steps = 4000", f"max_steps = {steps + 1}"))
    done = warm_process.run([*COMMAND, "--resume", str(run.path)], timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    assert [m["step"] for m in the_run(started.folder / "out").metrics("train")] == list(range(steps + 1))


@pytest.mark.long
def test_H8_a_rank_that_is_stopped_ends_the_run_with_where_it_stands(started: Started) -> None:
    started.until_trained(3)
    pids = started.ranks
    os.kill(pids[1], signal.SIGSTOP)
    errors = started.end()
    assert started.process.returncode == 1 and "Traceback" not in errors
    told = re.sub(r"\s+", " ", errors)
    assert f"Rank 1 of 2 (process {pids[1]} on {os.uname().nodename}) is stopped by a signal since" in told
    assert re.search(r"at: step \d+/4000: \w+", told) and "Rank 0 has waited" in told and "It stands at:" in told
    assert not any(alive(pid) for pid in pids.values())
    resume(started)


@pytest.mark.long
def test_H8_a_rank_that_waits_for_ever_ends_the_run_with_the_line_it_waits_at(started: Started) -> None:
    started.until_trained(3)
    pids = started.ranks
    started.trigger.touch()
    errors = started.end()
    assert started.process.returncode == 1
    told = re.sub(r"\s+", " ", errors)
    assert f"Rank 1 of 2 (process {pids[1]} on {os.uname().nodename}) does not move since" in told
    assert "mine.py" in told and "in centred" in told and "Rank 0 has waited" in told
    assert not any(alive(pid) for pid in pids.values())
    started.trigger.unlink()
    resume(started)


@pytest.mark.long
def test_ctrl_c_does_not_wait_for_a_rank_that_stands_still(started: Started) -> None:
    started.until_trained(1)
    pids = started.ranks
    os.kill(pids[1], signal.SIGSTOP)
    started.process.send_signal(signal.SIGINT)  # once
    errors = started.end()
    assert started.process.returncode == 130 and "not waited for any longer, as it stands still: rank 1" in errors
    assert not any(alive(pid) for pid in pids.values())
    assert the_run(started.folder / "out").status()["status"] == "stopped"


BEAT = Pulse(0.0, "", 0.0, 0.0, 0, False, False, 0.0, False, ())


class Watched:
    """Two ranks of one that reads their pulses, on a clock of its own: the first waits for the second."""

    def __init__(self, process: ProcessLook | None = None) -> None:
        self.process, self.clock = process, 0.0
        self.stillness = Stillness(600.0, lambda rank: self.process)
        for rank in (0, 1):
            self.stillness.start(rank)
            self.stillness.phase(rank, "step 1/9: sampling")
        self.pulses = {0: replace(BEAT, waits="the update", waits_since=5.0), 1: BEAT}

    def pass_s(self, seconds: float, silent: bool = False, cpu: float = 0.0) -> float | None:
        """When the second was told of, if it was. `cpu`: of a core, what it computes."""
        for second in range(int(seconds)):
            self.clock += 1.0
            self.stillness.tick(self.clock)
            self.stillness.hear(0, self.pulses[0])
            if not silent:
                self.pulses[1] = replace(self.pulses[1], cpu_s=self.pulses[1].cpu_s + cpu)
                self.stillness.hear(1, self.pulses[1])
            if found := self.stillness.find([0, 1]):
                assert (found.rank, found.waiting) == (1, 0)
                return second + 1.0
        return None

    def go_on(self, seconds: float) -> None:
        """Steps in which both stand still for so long, and one waits for nobody."""
        for step in range(2, 4):
            for rank in (0, 1):
                self.stillness.phase(rank, f"step {step}/9: sampling")
            self.pulses[1] = replace(self.pulses[1], moved=self.pulses[1].moved + 1)
            assert self.pass_s(seconds) is None
        self.stillness.phase(1, "step 4/9: sampling")
        self.pulses = {
            0: replace(self.pulses[0], moved=9.0, waits_since=self.clock),
            1: replace(self.pulses[1], moved=self.pulses[1].moved + 1),
        }


def test_H8_what_a_rank_may_take_follows_from_what_ranks_took_before() -> None:
    assert 600 <= (Watched().pass_s(5000) or 0) < 610, "nobody has been through this phase"
    known = Watched()
    known.go_on(5)
    assert 200 <= (known.pass_s(5000) or 0) < 210, "less where it is known"
    slow = Watched()
    slow.go_on(100)
    assert 95 * TIMES <= (slow.pass_s(5000) or 0) < 105 * TIMES, "and as much more as it took"


def test_a_rank_that_works_has_several_times_as_long() -> None:
    assert (Watched().pass_s(9000, cpu=0.5) or 0) > 600 * COMPUTING
    gpu = Watched()
    gpu.pulses[1] = replace(BEAT, gpu=True)
    assert (gpu.pass_s(9000, cpu=1.0) or 0) < 610, "it turns in circles while it waits for its device"
    reading = Watched()
    assert reading.pass_s(100) is None
    reading.pulses[1] = replace(BEAT, io_bytes=1 << 30)
    assert (reading.pass_s(9000) or 0) > 600 * COMPUTING - 200
    disk = Watched()
    disk.pulses[1] = replace(BEAT, disk=True)
    assert (disk.pass_s(9000) or 0) > 600 * COMPUTING - 200


def test_what_others_may_take_and_whoever_is_debugged_is_waited_for() -> None:
    tool = Watched()
    tool.pulses[1] = replace(BEAT, allowed_s=3000.0)
    assert (tool.pass_s(9000) or 0) > 3000
    for debugged in (Watched(), Watched(ProcessLook(0.0, "t", True))):
        debugged.pulses[1] = replace(BEAT, debugged=debugged.process is None)
        assert debugged.pass_s(9000) is None


def test_nobody_is_told_of_whom_nobody_waits_for_or_while_this_process_was_stopped() -> None:
    alone = Watched()
    alone.pulses[0] = BEAT
    assert alone.pass_s(9000) is None
    asleep = Watched()
    assert asleep.pass_s(300) is None
    asleep.clock += 1e6  # the whole machine, or the terminal's job
    assert asleep.pass_s(200) is None
    moving = Watched()
    for _ in range(40):
        assert moving.pass_s(100) is None
        moving.pulses[1] = replace(moving.pulses[1], moved=moving.pulses[1].moved + 1)


def test_H8_ranks_that_all_wait_for_one_another_are_told_of() -> None:
    both = Watched()
    both.pulses[1] = replace(BEAT, waits="other gradients", waits_since=7.0)
    assert both.pass_s(600) is None and both.stillness.all_wait([0, 1]) is None
    both.pass_s(2)
    assert both.stillness.all_wait([0, 1]) and Watched().stillness.all_wait([0, 1]) is None
    both.pass_s(1, cpu=400.0)
    assert both.stillness.all_wait([0, 1]) is None, "much is on its way"


def test_a_rank_that_says_nothing_is_judged_by_its_process() -> None:
    stopped = Watched(ProcessLook(0.1, "T", False))
    stopped.go_on(5)
    assert stopped.pass_s(150, silent=True) is None
    assert stopped.pass_s(100, silent=True), "as soon as one that does nothing"
    computing = Watched(ProcessLook(1e6, "R", False))
    computing.pass_s(1)
    assert (computing.pass_s(9000, silent=True) or 0) > 600 * COMPUTING - 10, "one that holds the interpreter"
    elsewhere = Watched(None)
    elsewhere.pass_s(1)
    assert (elsewhere.pass_s(9000, silent=True) or 0) > 600 * COMPUTING - 10, "on another machine: it may compute"


def test_after_ctrl_c_only_those_are_left_that_take_no_notice() -> None:
    def late(watched: Watched, seconds: float, waited_for: bool = True, cpu: float = 0.0) -> list[int]:
        watched.pass_s(2)
        since = watched.stillness.now
        watched.pass_s(seconds, cpu=cpu)
        return watched.stillness.hopeless([1], since, waited_for)

    assert late(Watched(), STOP_STILL_S - 2) == [] and late(Watched(), STOP_STILL_S + 2) == [1]
    assert late(Watched(), STOP_STILL_S + 2, waited_for=False) == [] and late(Watched(), STOP_WORKING_S + 2, False)
    assert late(Watched(), 500, cpu=0.5) == [], "an update that has begun is finished"
    known = Watched()
    known.go_on(5)
    assert late(known, TIMES * 5 + 20, cpu=0.5) == [1], "one that takes far longer than ever is none"
    assert late(Watched(ProcessLook(0.0, "T", False)), 5) == [1]
    for process, found in ((None, []), (ProcessLook(0.0, "T", False), [1])):
        moved = Watched(process)
        since = moved.stillness.now
        moved.pass_s(1)
        moved.pulses[1] = replace(BEAT, moved=2.0)
        moved.pass_s(100)
        assert moved.stillness.hopeless([1], since, True) == found, (
            "it has taken notice; or said it before, and came late"
        )


def test_a_pulse_says_what_is_waited_for_and_where() -> None:
    sent: list[dict[str, object]] = []
    pulses = PulseThread(sent.append, TIMEOUT_S)
    with waiting("the gradients", RANKS, 60), waiting("a tool", "environment x", 70):
        found = [pulses.take() for _ in range(5)][-1]
    pulses.stop()
    assert (found.waits, found.allowed_s) == ("the gradients", 70)
    assert any("in test_a_pulse_says_what_is_waited_for_and_where" in line for line in found.lines)
    assert found.cpu_s > 0 and not found.debugged and SILENT_S > 5 * 2.0


def test_a_reply_that_goes_on_is_progress_although_nothing_begins_or_ends() -> None:
    reply, before = Reply([1], Sampling(4), 4, "", None), WAITS.moved
    known = {"token": "token_id:5", "logprob": -0.5}
    said = {"content": [{**known, "top_logprobs": [known]}]}
    reply.take({"choices": [{"index": 0, "token_ids": [5], "logprobs": said, "finish_reason": None}]})
    assert reply.ids == [5] and WAITS.moved > before


def test_of_a_loop_that_only_waits_the_lines_are_those_of_its_tasks() -> None:
    async def inner() -> None:
        await asyncio.Event().wait()

    async def outer() -> None:
        await inner()

    def look(loop: asyncio.AbstractEventLoop) -> list[str]:
        until = time.monotonic() + WAIT_S
        found = list[str]()
        while not any("in inner: await asyncio.Event().wait()" in line for line in found):
            assert time.monotonic() < until, found
            found = where(loop)
        return found

    async def main() -> list[str]:
        task = asyncio.create_task(outer())
        found = await asyncio.to_thread(look, asyncio.get_running_loop())
        task.cancel()
        return found

    lines = asyncio.run(main())
    assert any(" in outer: await inner()" in line for line in lines), lines


def test_pulses_pass_by_any_descriptor_and_wait_for_nobody() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and hard != resource.RLIM_INFINITY and max(soft, hard) < 1200:
        pytest.skip("this machine gives a process no such number")
    reading, writing = os.pipe()
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        reporter = Reporter(fcntl.fcntl(writing, fcntl.F_DUPFD, 1100), 1)
        reporter.pulse({"moved": 1.0})
        assert os.read(reading, 100) == b'["pulse", {"moved": 1.0}]\n'
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, b"x" * 4096)
        os.set_blocking(writing, True)
        reporter.pulse({"moved": 2.0})  # nobody reads: it is left out, and whoever tells what matters is not held up
        assert set(os.read(reading, 1 << 20)) == {ord("x")}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(reading)
        os.close(writing)


def test_lines_of_a_dump_are_the_main_threads_with_the_innermost_last() -> None:
    dump = (
        'Thread 0x1 (most recent call first):\n  File "a.py", line 1 in other\n\n'
        'Current thread 0x2 (most recent call first):\n  File "b.py", line 2 in inner\n  File "b.py", line 9 in outer\n'
    )
    assert innermost(dump) == ['File "b.py", line 9 in outer', 'File "b.py", line 2 in inner']
    assert innermost("") == []
    assert any("test_lines_of_a_dump" in line for line in where(None))
