"""The worker process that an agent's episodes are forked from, and the requests it gets, from any event loop."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airloop.errors import AirError, InfraError
from airloop.programs.json_process import RUN_KEYS, JsonLineProcess, no_proxy_variables
from airloop.rollout.program import LostConnection, ProgramCrashed
from airloop.text.keys import without_keys

WORKER = Path(__file__).with_name("worker.py")
CLIENT_PREFIXES = ("OPENAI_", "ANTHROPIC_")  # of variables that clients of a model read
SHOWN_CHARACTERS = 400  # of the end of what a program printed
AGENT, SCORER = "the agent's program", "the scorer"
FIXES = {AGENT: "correct the agent's file; `air tasks show` plays its first request.", SCORER: "correct the scorer."}


class Workers(JsonLineProcess):
    """Runs one function for each episode, any number at the same time."""

    def __init__(self, path: Path, function: str, python: str = "", role: str = AGENT) -> None:
        self._role = role
        super().__init__(
            [python or sys.executable, str(WORKER), str(path), function], f"the process that starts {role}"
        )

    def environ(self) -> dict[str, str]:
        """An agent gets neither the user's own API keys, which a library may read when it is imported, nor the keys of
        the run. A scorer keeps them: it may use another model than the policy."""
        env = super().environ()
        if self._role == AGENT:
            return {name: value for name, value in env.items() if not name.startswith(CLIENT_PREFIXES)}
        return {**env, **{name: os.environ[name] for name in RUN_KEYS if name in os.environ}}

    async def run(
        self, task: Mapping[str, Any], variables: Mapping[str, str], given: Sequence[str] = ()
    ) -> float | dict[str, float]:
        """The score that the function returned. AirError where its file cannot be used. `given`: for a scorer, the
        folder of an agent's files, and what the agent printed."""
        ended = await self.request({"task": task, "env": {**variables, **no_proxy_variables()}, "given": given})
        printed = self.printed if ended.get("gone") else ended["printed"]
        return _score({**ended, "printed": without_keys(printed, variables)}, variables, self._role)


def _score(ended: Mapping[str, Any], variables: Mapping[str, str], role: str) -> float | dict[str, float]:
    result, code = ended["result"], ended["code"]
    printed = ended["printed"].strip()[-SHOWN_CHARACTERS:]
    after = f"; it printed last: {printed}" if printed else ""
    if "score" in result:
        return result["score"]
    if "defect" in result:
        raise AirError(f"{role.capitalize()}: {without_keys(result['defect'], variables)}.", FIXES[role])
    if "crash" in result:
        raise ProgramCrashed(without_keys(result["crash"], variables))
    if "lost" in result:
        lost = f"{role}: {without_keys(result['lost'], variables)}"
        raise LostConnection(lost) if role == AGENT else InfraError(lost)
    if "infra" in result:
        raise InfraError(f"{role}: {without_keys(result['infra'], variables)}")
    if ended.get("gone"):
        raise InfraError(f"the process that starts {role} ended with code {code}{after}")
    if code == -signal.SIGKILL:  # as a system does that is out of memory
        raise InfraError(f"{role} was killed{after}")
    how = f"by signal {-code}" if code < 0 else f"with code {code}"
    raise ProgramCrashed(f"it ended {how} and without a score{after}")
