"""Agents that are commands: each episode runs one in a sandbox of its own, which reaches the policy and nothing else.

args = { command = ["python", "agent.py"], files = "./agent", scorer = "./score.py:score", tasks = "tasks.jsonl" }
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from airloop.envs.base import EnvArgs
from airloop.envs.paths import Anchored, code, existing
from airloop.errors import AirError, InfraError, MissingRequirement
from airloop.programs.json_process import LOCAL_HOSTS
from airloop.programs.run_one import TEMPORARY
from airloop.programs.scorer import SCORE_S, Scorer, WorkspaceCopies
from airloop.programs.workers import SHOWN_CHARACTERS
from airloop.rollout.program import Address, ProgramCrashed, ProgramOutcome
from airloop.sandbox.backends import make_backend
from airloop.sandbox.base import HOME, Image, Limits, Result, SandboxLost, as_files
from airloop.sandbox.bubblewrap.command import PATH
from airloop.sandbox.needs import looking, missing_in_sandbox
from airloop.sandbox.pool import Lease, Pool
from airloop.sandbox.shell import KILLED
from airloop.text.keys import without_keys
from airloop.types import Ending, Task

POLICY_PORT = 3129  # the port inside the sandbox that is forwarded to the policy
TASK_FILE = f"{HOME}/task.json"
LONGEST_VARIABLE = 1 << 16  # bytes: Linux takes twice that of one variable
LARGEST_FILES = 64 << 20
END_S = 10.0  # for what the agent has left running to end
LOOK_S = 20.0
STANDBY = 2  # sandboxes that wait for the next episodes
LEASE_S = COPY_S = 120.0  # for its sandbox to be had, and for its workspace to be copied
MARGIN_S = LEASE_S + COPY_S + 60.0  # beside an episode's own time: so that no wait of ours is taken for the agent's
END_ALL = "builtin kill -KILL -1"  # but the shell itself and the sandbox's first process
FINISH_S = SCORE_S + MARGIN_S


class CommandArgs(EnvArgs):
    command: list[str] = Field(
        default_factory=list, description='the agent, as a command in a sandbox: ["python", "agent.py"]'
    )
    files: Annotated[str, Anchored(existing)] = Field(
        default="", description="a folder, or one file, that its workspace begins with"
    )
    sandbox: Literal["bubblewrap", "container"] | None = Field(
        default=None, description="where a command runs; bubblewrap, or a container where an image is named"
    )
    image: str = Field(default="", description="a container's image to run it in, by Docker or Podman")
    container_runtime: str = Field(
        default="", description='by what the engine runs it, as "runsc"; by default the engine\'s own choice'
    )
    scorer: Annotated[str, Anchored(code)] = Field(
        default="", description='a function (task, workspace[, output]) → score that no agent sees: "./score.py:score"'
    )
    hidden: list[str] = Field(
        default_factory=list, description="columns of the rows that only the scorer is told: the answers"
    )
    packages: list[str] = Field(
        default_factory=list, description="of this Python's, that the command may import, where no python is named"
    )
    memory_mb: int = Field(default=2048, ge=64, description="memory of a command's sandbox")
    disk_mb: int = Field(default=256, ge=1, description="of a command's files")

    @model_validator(mode="before")
    @classmethod
    def _fill_sandbox(cls, given: Any) -> Any:
        """Of a command there always is one: the doctor looks for it."""
        if isinstance(given, dict) and given.get("command") and given.get("sandbox") is None:
            return {**given, "sandbox": "container" if given.get("image") else "bubblewrap"}
        return given


def check_command(args: CommandArgs, python: str) -> None:
    """ValueError for what does not go together."""
    if not args.command:
        of_commands = ("files", "sandbox", "image", "container_runtime", "scorer", "hidden", "packages")
        if given := [name for name in of_commands if getattr(args, name)]:
            raise ValueError(f"{given[0]} is for agents that are commands, and there is no command")
        return
    if not args.scorer:
        raise ValueError('a command gives no score itself: add scorer = "./score.py:score"')
    if (args.sandbox == "container") != bool(args.image):
        wanted = 'name its image: image = "…"' if args.sandbox == "container" else "leave out image"
        raise ValueError(f'sandbox = "{args.sandbox}": {wanted}')
    if args.image and (python or args.packages):
        raise ValueError("a container has the Python of its image: leave out python and packages")
    if args.container_runtime and not args.image:
        raise ValueError("container_runtime is for containers, and there is no image")
    if python and args.packages:
        raise ValueError("the Python that is named has its own packages: leave out packages")


@dataclass(frozen=True)
class LoopResources:
    """What episodes in one event loop share."""

    loop: asyncio.AbstractEventLoop
    pool: Pool
    copies: WorkspaceCopies


class Command:
    """Runs each episode with a command in a sandbox, and has the files that it leaves scored."""

    scorer_name = "The scorer"

    def __init__(self, args: CommandArgs, python: str, tasks: Sequence[str | None]) -> None:
        """`tasks`: where the rows are, which the agent must not find among its files."""
        self.args, self._sandbox = args, args.sandbox or "bubblewrap"
        self.scorer = Scorer(args.scorer)
        self._check_apart([str(self.scorer.path), *filter(None, tasks)])
        self.image = Image(
            files=_files(args.files),
            limits=Limits(memory_mb=args.memory_mb, disk_mb=args.disk_mb, file_mb=args.disk_mb),
            container=args.image,
            door=POLICY_PORT,
            **_own_python(python),
        )
        self._resources: LoopResources | None = None

    def _check_apart(self, secrets: Sequence[str]) -> None:
        if not self.args.files:
            return
        folder = Path(self.args.files).resolve()
        for secret in secrets:
            if Path(secret).exists() and Path(secret).resolve().is_relative_to(folder):
                raise AirError(
                    f"{secret} lies in files = {self.args.files!r}, which agents are shown.",
                    "move it out of there: an agent that reads it knows what is wanted of it.",
                )

    # --- one episode ----------------------------------------------------------------------------------------

    async def play(self, task: Task, seed: int, address: Address) -> tuple[float | dict[str, float], ProgramOutcome]:
        """What the scorer gave, and how the command ended."""
        resources = self._open()
        try:
            async with _with_timeout(LEASE_S, "a sandbox could not be had"):
                lease = await resources.pool.lease(self.image, address.seconds + MARGIN_S)
            async with lease:
                ran = await self._run(lease, task, seed, address)
                if (door := lease.sandbox.passage) is not None and door.trouble:
                    raise InfraError(f"a request of the agent did not get out of its sandbox: {door.trouble}")
                crash = await _crash(lease, *ran, address)
                async with _with_timeout(COPY_S, "the workspace could not be copied"):
                    folder = await resources.copies.make(lease.sandbox.pack, self.args.disk_mb << 20)
        except SandboxLost as lost:
            raise ProgramCrashed(f"its sandbox is lost: {lost}") from lost
        result = ran[0]
        began = time.monotonic()
        with folder as place:  # its sandbox has ended, and with it all that the agent had started
            given = await self.scorer.score(task.payload, Path(place), result.output)
        ending: Ending = "deadline" if result.timed_out else "done"
        facts = {"exit_code": float(result.exit_code)}
        return given, ProgramOutcome({}, facts, ending, crash, time.monotonic() - began)

    async def _run(self, lease: Lease, task: Task, seed: int, address: Address) -> tuple[Result, int | None]:
        """What the command did, and how many processes the kernel had killed for memory before."""
        at = urlsplit(address.base_url)
        assert at.hostname is not None and at.port is not None
        lease.sandbox.lead(at.hostname, at.port)
        shown = {name: value for name, value in task.payload.items() if name not in self.args.hidden}
        text = json.dumps(shown, ensure_ascii=False, default=str)
        await lease.put(TASK_FILE, text.encode("utf-8", "replace"))
        variables = {
            **inside(address).variables(),
            "AIR_SEED": str(seed),
            "AIR_SECONDS": f"{address.seconds:.0f}",
            "AIR_TASK_FILE": TASK_FILE,
            "NO_PROXY": LOCAL_HOSTS,
            "no_proxy": LOCAL_HOSTS,
        }
        if len(text.encode("utf-8", "replace")) <= LONGEST_VARIABLE:
            variables["AIR_TASK"] = text
        exports = "".join(f"export {name}={shlex.quote(value)}; " for name, value in variables.items())
        before = oom_kills()
        result = await lease.run(f"({exports}exec {shlex.join(self.args.command)})", address.seconds)
        await lease.run(END_ALL, END_S)
        return result, before

    def _open(self) -> LoopResources:
        """The sandboxes of this event loop; those of another loop have ended with it."""
        loop = asyncio.get_running_loop()
        if self._resources is not None and self._resources.loop is not loop:
            self._abandon_sandboxes()
        if self._resources is None:
            backend = make_backend(
                self._sandbox, packages=tuple(self.args.packages), preload=(), warm_python=False,
                runtime=self.args.container_runtime,
            )  # fmt: skip
            self._resources = LoopResources(loop, Pool(backend, standby=STANDBY), WorkspaceCopies())
        return self._resources

    # --- before the run, and its end --------------------------------------------------------------------------

    def lacks(self) -> Sequence[MissingRequirement]:
        return missing_in_sandbox(self._sandbox)

    async def check_sandbox(self) -> Sequence[MissingRequirement]:
        """Whether a sandbox of it has the command's program."""
        program = self.args.command[0]
        args = self.args
        async with looking(self._sandbox, "", tuple(args.packages), args.container_runtime) as backend:
            sandbox = await backend.start(self.image)
            try:
                found = await sandbox.run(f"command -v -- {shlex.quote(program)}", LOOK_S)
            finally:
                await sandbox.close()
        if found.exit_code == 0:
            return []
        where = f"the image {args.image}" if args.image else "the sandbox"
        return [
            MissingRequirement(
                f"The agent's command is {program!r}, and {where} has no such program.", "correct args.command."
            )
        ]

    def abandon(self) -> None:
        self.scorer.close()
        self._abandon_sandboxes()

    def _abandon_sandboxes(self) -> None:
        resources, self._resources = self._resources, None
        if resources is not None:
            resources.pool.abandon()

    async def close(self) -> None:
        await asyncio.to_thread(self.scorer.close)
        resources, self._resources = self._resources, None
        if resources is not None:
            await resources.pool.close()


@asynccontextmanager
async def _with_timeout(seconds: float, what: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise InfraError(f"{what} within {seconds:.0f} s") from error


def inside(address: Address) -> Address:
    """The address as the command reaches it from inside its sandbox."""
    return replace(address, base_url=f"http://127.0.0.1:{POLICY_PORT}{urlsplit(address.base_url).path}")


async def _crash(lease: Lease, result: Result, oom_before: int | None, address: Address) -> str:
    """Why the command failed; "" if it ended well. InfraError where the failure was not the agent's."""
    code = result.exit_code
    if code == 0 or result.timed_out:
        return ""
    printed = without_keys(result.output, address.variables()).strip()[-SHOWN_CHARACTERS:]
    after = f"; it printed last: {printed}" if printed else ""
    if code == TEMPORARY:
        raise InfraError(f"the agent's command ended with code {TEMPORARY}: not its fault{after}")
    if code != KILLED:
        return f"it ended with code {code}{after}"
    if await lease.sandbox.starved():
        return f"it used more than its memory{after}"
    # An agent can kill its own command: if that made the episode be repeated, it could do so to avoid a bad score.
    now = oom_kills()
    if now is None or now != oom_before:
        raise InfraError(f"the agent's command was killed, perhaps for want of memory on this machine{after}")
    return f"it was killed from inside its sandbox{after}"


def oom_kills() -> int | None:
    """How many processes the kernel has killed for want of memory; None where it does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def _files(named: str) -> tuple[tuple[str, bytes, int], ...]:
    path = Path(named)
    if not named:
        return ()
    if path.is_file():
        return ((path.name, path.read_bytes(), path.stat().st_mode & 0o777),)
    if not path.is_dir():
        raise AirError(f"There is no folder or file {named!r} for the agent's files.", "correct args = { files = … }.")
    size = sum(found.stat().st_size for found in _found(path))
    if size > LARGEST_FILES:
        raise AirError(
            f"The agent's files in {named} are {size >> 20} MiB, and every episode begins with a copy of them.",
            f"leave at most {LARGEST_FILES >> 20} MiB there; an interpreter of its own is named by python, not copied.",
        )
    return as_files(path)


def _found(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _own_python(python: str) -> Mapping[str, Any]:
    """An interpreter with all its packages, shown where it lies, and found first."""
    if not python:
        return {}
    asked = "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix]))"
    try:
        ran = subprocess.run([python, "-I", "-c", asked], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise AirError(
            f"{python} is no Python that agents can use: {error}.", "correct args = { python = … }."
        ) from None
    prefix, base = json.loads(ran.stdout)
    shown = dict.fromkeys(place for place in (base, prefix) if not Path(place).is_relative_to("/usr"))
    return {
        "binds": tuple((place, place) for place in shown),
        "env": (("PATH", f"{prefix}/bin:{PATH}"), ("VIRTUAL_ENV", prefix)),
    }
