"""The process that an environment of verifiers runs in, and how its answers are read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airloop.errors import AirError, InfraError
from airloop.own_code import inside_run
from airloop.programs.json_process import JsonLineProcess
from airloop.programs.workers import SHOWN_CHARACTERS
from airloop.rollout.program import Address, ProgramCrashed
from airloop.text.keys import without_keys
from airloop.verifiers.installed import interpreter
from airloop.waits import waiting

WORKER = Path(__file__).with_name("worker.py")
LOAD_S = 1800.0  # for the library, the environment and its data set
PATHS = (".", "/", "~")  # what a path begins with, and no name


class Host:
    """One environment, with its arguments."""

    def __init__(self, environment: str, python: str, args: Mapping[str, Any]) -> None:
        name, folder = module_of(environment)
        self.name = name
        setup = json.dumps({"name": name, "folder": folder, "args": dict(args)}, default=str)
        command = [interpreter(name, python), str(WORKER), setup]
        self._process = JsonLineProcess(command, f"the environment {name!r} of verifiers")

    def describe(self) -> dict[str, Any]:
        found: dict[str, Any] = self._request_blocking({"do": "describe"}, "loading")["described"]
        return found

    def rows(self, most: int | None) -> dict[str, list[dict[str, Any]]]:
        """Its tasks: those to train on, and those that it keeps for evaluation."""
        found: dict[str, Any] = self._request_blocking({"do": "tasks", "most": most}, "the tasks")["rows"]
        if found.get("endless"):
            raise AirError(f"The tasks of {self.name!r} have no end.", "say how many: args = { max_tasks = 1000 }.")
        if not found["train"] and not found["test"]:
            raise AirError(f"The environment {self.name!r} has no tasks.", "correct its args.")
        return found

    async def play(self, row: Mapping[str, Any], address: Address) -> tuple[dict[str, float], float]:
        """What each function of an episode's score gave, and the reward that the environment makes of it."""
        result = await self._play(row, address)
        return result["values"], result["reward"]

    async def play_first(self, row: Mapping[str, Any], address: Address) -> None:
        """The same without a score: the process keeps the episode's state until it is forgotten."""
        await self._play(row, address, keep=address.episode)

    async def score(self, episodes: Sequence[str]) -> list[tuple[dict[str, float], float]]:
        """As `play` returns it, of episodes that were played by `play_first`, scored as one group."""
        reply = await self._process.request({"do": "score", "episodes": list(episodes)})
        return [(one["values"], one["reward"]) for one in self._result(reply)["scores"]]

    def forget(self, episodes: Sequence[str]) -> None:
        self._process.notify({"do": "forget", "episodes": list(episodes)})

    async def _play(self, row: Mapping[str, Any], address: Address, **more: str) -> dict[str, Any]:
        at = {"base_url": address.base_url, "api_key": address.api_key, "model": address.model}
        return self._result(await self._process.request({"do": "play", "row": row, **at, **more}))

    def close(self) -> None:
        self._process.close()

    def _request_blocking(self, message: Mapping[str, Any], what: str) -> dict[str, Any]:
        owner = f"environment {self.name}"
        try:
            with waiting(f"{what} of {self.name}", owner, LOAD_S, log=lambda: self._process.printed):
                return self._result(self._process.request_blocking(message, LOAD_S))
        except TimeoutError:
            self.close()
            raise AirError(
                f"The environment {self.name!r} was not loaded after {LOAD_S:.0f} s.", "see what it waits for."
            ) from None
        except (InfraError, ProgramCrashed) as error:
            raise AirError(f"The environment {self.name!r} cannot be used: {error}.", "mend it.") from error

    def _result(self, reply: Mapping[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = reply["result"]
        errors = {kind: without_keys(str(result[kind])) for kind in ("defect", "crash", "infra") if kind in result}
        if lacking := result.get("lacks"):
            defect = errors["defect"]
            raise AirError(
                f"The environment {self.name!r} needs {' and '.join(lacking)}, for a judge perhaps: {defect}.",
                f"set {' and '.join(lacking)} where air is started.",
            )
        if "defect" in errors:
            fix = "correct its args, or its file; name another interpreter with args = { python = … }."
            raise AirError(f"The environment {self.name!r} of verifiers cannot be used: {errors['defect']}.", fix)
        if "crash" in errors:
            raise ProgramCrashed(errors["crash"])
        if "infra" in errors:
            raise InfraError(f"the environment {self.name!r}: {errors['infra']}")
        if reply.get("gone"):
            printed = without_keys(self._process.printed).strip()[-SHOWN_CHARACTERS:]
            after = f"; it printed last: {printed}" if printed else ""
            raise InfraError(f"the process of the environment {self.name!r} ended with code {reply['code']}{after}")
        return result


def module_of(environment: str) -> tuple[str, str]:
    """The name of its module, and the folder that has it where it is not installed: of "./my_env.py", of a folder that
    is a package, and of a project's folder with a module or package of its name."""
    if not environment.startswith(PATHS) and not environment.endswith(".py"):
        return environment, ""
    path = Path(environment).expanduser().resolve()
    if run := inside_run(path):
        raise AirError(
            f"The environment {environment!r} is inside the run {run}, and a run's files are never executed.",
            "look at it; if you trust it, copy it elsewhere and name that place in the config.",
        )
    if path.is_file() or (path / "__init__.py").is_file():
        return path.stem, str(path.parent)
    name = path.name.replace("-", "_")
    if (path / f"{name}.py").is_file() or (path / name / "__init__.py").is_file():
        return name, str(path)
    raise AirError(
        f"{path} has no environment: it is no file, no package, and has neither {name}.py nor {name}/__init__.py.",
        "correct its path.",
    )
