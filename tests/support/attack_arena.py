"""Where attacks are made: small sandboxes, and a look at the next one afterwards."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from airloop.envs.base import load_environment
from airloop.rollout.episode import run_episode
from airloop.sandbox.base import Image, Limits, Result
from airloop.sandbox.bubblewrap import cgroups
from airloop.sandbox.bubblewrap.backend import Bubblewrap
from airloop.sandbox.bubblewrap.sandbox import BubblewrapSandbox
from airloop.sandbox.container.backend import Container
from airloop.types import Message, Trajectory
from airloop_envs.mlgym.env import MlgymEnv

T = TypeVar("T")

# Where no group limits a sandbox's memory, each process has a limit of addresses, of which a warm python takes many.
MEMORY_MB = 256 if cgroups.find().memory else 1024
LIMITS = Limits(
    memory_mb=MEMORY_MB, processes=48, open_files=256, file_mb=48, disk_mb=32, cpu_s=30, output_bytes=100_000
)
IMAGE = Image(files=(("a.txt", b"as it was\n", 0o644),), limits=LIMITS)
SECRET = "hunter2-" + "x7Qz" * 4  # in the host's environment: nowhere inside
SLOWER_S = 8.0  # more than the first probe took, every time: that is harm, not a busy machine
LOOKS = 4
PROBE = """cat a.txt; pwd; ls -A ~ /tmp /dev/shm; id -u; ulimit -n; env | sort | grep -v -e ^_= -e OLDPWD
python -c 'import numpy, os, sys; print(numpy.arange(3).sum(), sys.argv, os.getcwd(), sorted(os.listdir("/proc"))[:1])'
"""
# The tests' image has no numpy, and the engine gives every process of a container the shell's mark.
PROBE_OF_CONTAINERS = PROBE.replace("numpy.arange(3).sum()", "3").replace("numpy, ", "").replace(
    "OLDPWD", "OLDPWD -e ^AIR_MARK="
)  # fmt: skip


class Arena(AbstractContextManager["Arena"]):
    """`container` is an image's name; without one, sandboxes are bubblewrap's."""

    backend: Any

    def __init__(self, container: str = "") -> None:
        os.environ["WANDB_API_KEY"] = SECRET
        self.loop = asyncio.new_event_loop()
        self.container = container
        self.backend = Container() if container else Bubblewrap()
        self.usual = ""
        self.usual_s = 0.0

    def __enter__(self) -> Self:
        self.usual, self.usual_s = self.probe()
        self.usual, self.usual_s = self.probe()  # the first has waited for libraries to load
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del os.environ["WANDB_API_KEY"]
        self.loop.run_until_complete(self.backend.close())
        self.loop.close()

    def do(self, work: Coroutine[Any, Any, T], seconds: float = 60.0) -> T:
        """Every attack has an end."""
        return self.loop.run_until_complete(asyncio.wait_for(work, seconds))

    async def sandbox(self, image: Image = IMAGE) -> Any:
        """One that has its warm python, where there is such a thing."""
        sandbox = await self.backend.start(replace(image, container=self.container))
        if isinstance(sandbox, BubblewrapSandbox) and sandbox._warming is not None:
            await asyncio.gather(sandbox._warming)
        return sandbox

    def attack(self, *commands: str, timeout: float = 10.0, image: Image = IMAGE) -> Result:
        """Runs bash in a sandbox of its own; the result is the last command's."""

        async def work() -> Result:
            sandbox = await self.sandbox(image)
            try:
                for command in commands:
                    result = await sandbox.run(command, timeout)
            finally:
                await sandbox.close()
            return result

        return self.do(work())

    def python(self, source: str, timeout: float = 10.0, image: Image = IMAGE, cold: bool = False) -> str:
        """The output of a python script run by an agent."""
        name = self.backend.interpreter.executable if cold and not self.container else "python"
        return self.attack(f"cat > attack.py <<'AIR_END'\n{source}\nAIR_END\n{name} attack.py 2>&1", timeout=timeout,
                           image=image).output  # fmt: skip

    def probe(self) -> tuple[str, float]:
        async def work() -> tuple[str, float]:
            started = time.monotonic()
            sandbox = await self.sandbox()
            result = await sandbox.run(PROBE_OF_CONTAINERS if self.container else PROBE, 30)
            seconds = time.monotonic() - started
            await sandbox.close()
            return result.output, seconds

        return self.do(work())

    def check_unharmed(self) -> None:
        for _ in range(LOOKS):
            output, seconds = self.probe()
            assert output == self.usual
            if seconds < self.usual_s + SLOWER_S:
                return
        raise AssertionError(f"a sandbox takes {seconds:.1f} s, and took {self.usual_s:.1f} s before the attack")


class Script:
    """An agent that does one command after the other."""

    def __init__(self, commands: Sequence[str]) -> None:
        self.commands = list(commands)

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Message:
        return Message(role="assistant", content=f"```bash\n{self.commands.pop(0)}\n```")


HONEST = "printf 'def row_strategy(history):\\n    return 0\\n' > strategy.py"
TASKS = ["titanic.yaml", "prisonersDilemma.yaml", "3SATTime.yaml", "blotto.yaml"]


class Episodes(AbstractContextManager["Episodes"]):
    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        args = {"task_configs": TASKS, "source": "builtin", "memory_mb": 512, "disk_mb": 64, "processes": 64}
        args |= {"command_timeout_s": 6.0, "training_timeout_s": 8.0, "standby": 0}
        env = load_environment("mlgym", args)
        assert isinstance(env, MlgymEnv)
        self.env = env
        self.tasks = {task.family: task for task in reversed(env.tasks("train"))}
        self.usual = 0.0

    def __enter__(self) -> Self:
        self.usual = self.score("prisonersDilemma", HONEST, "submit")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.arena.do(self.env.close())

    def play(self, family: str, *commands: str, weights: Mapping[str, float] | None = None, seconds: float = 400.0,
             deadline_s: float = 380.0) -> Trajectory:  # fmt: skip
        """Raises EpisodeDefect when the agent got the better of the environment: that would end a run."""
        usual = self.env.reward_weights
        self.env.weigh(weights or usual)
        work = run_episode(self.env, self.tasks[family], Script(commands), id="attack", seed=0,
                           max_turns=len(commands), deadline_s=deadline_s)  # fmt: skip
        try:
            return self.arena.do(work, seconds)
        finally:
            self.env.weigh(usual)

    def score(self, family: str, *commands: str) -> float:
        played = self.play(family, *commands)
        assert played.ending != "infra_error", played.error
        return float(played.metrics["score"])

    def seen(self, played: Trajectory) -> str:
        return "\n".join(observation.text for turn in played.turns for observation in turn.observations)

    def check_unharmed(self) -> None:
        assert abs(self.score("prisonersDilemma", HONEST, "submit") - self.usual) < 0.05


def write(name: str, text: str) -> str:
    """A command that writes a file."""
    return f"cat > {name} <<'AIR_END'\n{text}\nAIR_END"
