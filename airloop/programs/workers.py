"""The process that an agent's episodes are forked from, and who gives it orders: from any event loop."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airloop.errors import AirError, InfraError
from airloop.programs.process import RUNS, OrderedProcess, direct
from airloop.rollout.program import LostConnection, ProgramCrashed

WORKER = Path(__file__).with_name("worker.py")
SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)
LEAST_SECRET = 8  # characters: shorter ones are words
USERS = ("OPENAI_", "ANTHROPIC_")  # what names of variables begin with that are for clients
SHOWN = 400  # characters of what a program printed last
AGENT, SCORER = "the agent's program", "the scorer"
FIXES = {AGENT: "correct the agent's file; `air tasks show` plays its first request.", SCORER: "correct the scorer."}


class Workers(OrderedProcess):
    """Episodes of one function, as many at once as are asked for."""

    def __init__(self, path: Path, function: str, python: str = "", who: str = AGENT) -> None:
        self._who = who
        super().__init__([python or sys.executable, str(WORKER), str(path), function], f"the process that starts {who}")

    def environ(self) -> dict[str, str]:
        """A library that makes a client when it is imported must not make one with the user's own key. A scorer may
        have a model to ask, which is not the policy, and has all that the run has."""
        env = super().environ()
        if self._who == AGENT:
            return {name: value for name, value in env.items() if not name.startswith(USERS)}
        return {**env, **{name: os.environ[name] for name in RUNS if name in os.environ}}

    async def run(
        self, task: Mapping[str, Any], variables: Mapping[str, str], given: Sequence[str] = ()
    ) -> float | dict[str, float]:
        """The score that the function gave. AirError where its file cannot be used. `given`: for a scorer, the folder
        with an agent's files, and what the agent printed."""
        ended = await self.ask({"task": task, "env": {**variables, **direct()}, "given": given})
        printed = self.printed if ended.get("gone") else ended["printed"]
        return _score({**ended, "printed": masked(printed, variables)}, variables, self._who)


def masked(text: str, variables: Mapping[str, str]) -> str:
    """Without any key that a program could know: what it says of its end is kept with the run."""
    known = {**os.environ, **variables}
    secrets = {value for name, value in known.items() if len(value) >= LEAST_SECRET and SECRET.search(name)}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "…")
    return text


def _score(ended: Mapping[str, Any], variables: Mapping[str, str], who: str) -> float | dict[str, float]:
    result, code = ended["result"], ended["code"]
    printed = ended["printed"].strip()[-SHOWN:]
    after = f"; it printed last: {printed}" if printed else ""
    if "score" in result:
        return result["score"]
    if "defect" in result:
        raise AirError(f"{who.capitalize()}: {masked(result['defect'], variables)}.", FIXES[who])
    if "crash" in result:
        raise ProgramCrashed(masked(result["crash"], variables))
    if "lost" in result:
        lost = f"{who}: {masked(result['lost'], variables)}"
        raise LostConnection(lost) if who == AGENT else InfraError(lost)
    if "infra" in result:
        raise InfraError(f"{who}: {masked(result['infra'], variables)}")
    if ended.get("gone"):
        raise InfraError(f"the process that starts {who} ended with code {code}{after}")
    if code == -signal.SIGKILL:  # as a system does that is out of memory
        raise InfraError(f"{who} was killed{after}")
    how = f"by signal {-code}" if code < 0 else f"with code {code}"
    raise ProgramCrashed(f"it ended {how} and without a score{after}")
