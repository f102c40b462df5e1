"""Times solver.solve on unseen instances. The starter solver is timed in turns with it, and Time is
given in seconds of a machine on which the starter takes STARTER_SECONDS: so a faster or busier machine does not
look like a better solver."""

from __future__ import annotations

import json
import runpy
import time
from pathlib import Path
from typing import Any

from agent_code import agent_function, results
from verdict import Invalid, report

STARTER_SECONDS = 2.0
PENALTY = 1.0  # seconds for each wrong answer
PATIENCE = 5  # times the starter's time so far and a second: then the instances that are left count as wrong


def is_solution(assignment: Any, num_vars: int, clauses: list[list[int]]) -> bool:
    return len(assignment) == num_vars and all(any(assignment[abs(x) - 1] is (x > 0) for x in c) for c in clauses)


def checked(answer: Any) -> Any:
    if answer is not None and not (isinstance(answer, list | tuple) and all(type(v) is bool for v in answer)):
        raise Invalid(f"solve returned {answer!r:.60}; it must return a list of bools, or None for no solution.")
    return answer


class Clock:
    """CPU seconds of the agent's code: of its own process where the module tells them, else of this one."""

    def __init__(self) -> None:
        import solver

        self.module = solver
        self.told = hasattr(solver, "cpu_seconds")

    def now(self) -> float:
        return float(self.module.cpu_seconds) if self.told else time.process_time()


def evaluate() -> dict[str, float]:
    instances = json.loads(Path("answers/instances.json").read_text())
    starter_solve = runpy.run_path("answers/starter_solver.py")["solve"]  # solver.py here is the agent's
    solve = agent_function("solver", "solve")
    clock = Clock()
    seconds, starter, correct = 0.0, 0.0, 0
    for instance in instances:  # in turns, so that both meet the same moods of the machine
        num_vars, clauses = instance["num_vars"], instance["clauses"]
        if seconds > PATIENCE * (starter + 1):
            break
        before = time.process_time()
        starter_solve(num_vars, [[*c] for c in clauses])
        starter += time.process_time() - before
        before = clock.now()
        (answer,) = results(solve, [(num_vars, [[*c] for c in clauses])], "solve")
        seconds += clock.now() - before
        told = checked(answer)
        correct += is_solution(told, num_vars, clauses) if told is not None else not instance["satisfiable"]
    wrong = len(instances) - correct
    return {"Time": round(STARTER_SECONDS * seconds / starter + PENALTY * wrong, 4), "Correct": correct}


if __name__ == "__main__":
    report(evaluate)
