"""Times solver.solve on instances that are drawn anew in every grading, so that what one grading has shown is worth
nothing in the next. The starter solver is timed in turns with it, and Time is given in seconds of a machine on which
the starter takes STARTER_SECONDS: so a faster or busier machine does not look like a better solver, nor do easier
instances. The starter is complete: what it cannot solve has no solution."""

from __future__ import annotations

import random
import runpy
import time
from collections.abc import Callable
from typing import Any

from agent_code import agent_function, results
from instances import NUM_VARS, draw
from verdict import Invalid, report

INSTANCES = 30
STARTER_SECONDS = 2.0
PENALTY = 1.0  # seconds for each wrong answer
PATIENCE = 5  # times the starter's time so far and a second: then the instances that are left count as wrong


def is_solution(assignment: Any, clauses: list[list[int]]) -> bool:
    return len(assignment) == NUM_VARS and all(any(assignment[abs(x) - 1] is (x > 0) for x in c) for c in clauses)


def checked(answer: Any) -> Any:
    if answer is not None and not (isinstance(answer, list | tuple) and all(type(v) is bool for v in answer)):
        raise Invalid(f"solve returned {answer!r:.60}; it must return a list of bools, or None for no solution.")
    return answer


class Clock:
    """Seconds of a call: CPU time, of the agent's own process where the module tells it. Where some of that may be
    missing (a child that ends while SIGCHLD is ignored takes its own along), the clock on the wall counts if it says
    more: of the starter, too, so that a busy machine slows both."""

    def __init__(self) -> None:
        import solver

        self.module = solver
        self.told = hasattr(solver, "cpu_seconds")
        self.wall = self.told and not getattr(solver, "all_counted", True)

    def agents(self) -> float:
        return float(self.module.cpu_seconds) if self.told else time.process_time()

    def timed(self, cpu: Callable[[], float], call: Callable[[], Any]) -> tuple[Any, float]:
        before = cpu()
        began = time.monotonic()
        found = call()
        wall = time.monotonic() - began
        return found, max(cpu() - before, wall) if self.wall else cpu() - before


def evaluate() -> dict[str, float]:
    rng = random.Random()  # seeded by the system
    starter_solve = runpy.run_path("answers/starter_solver.py")["solve"]  # solver.py here is the agent's
    solve = agent_function("solver", "solve")
    clock = Clock()
    seconds, starter, correct = 0.0, 0.0, 0
    for _ in range(INSTANCES):  # in turns, so that both meet the same moods of the machine
        clauses = draw(rng)
        if seconds > PATIENCE * (starter + 1):
            break
        question = (NUM_VARS, [[*c] for c in clauses])
        found, spent = clock.timed(time.process_time, lambda q=question: starter_solve(*q))
        satisfiable, starter = found is not None, starter + spent
        question = (NUM_VARS, [[*c] for c in clauses])
        (answer,), spent = clock.timed(clock.agents, lambda q=question: results(solve, [q], "solve"))
        seconds += spent
        told = checked(answer)
        correct += is_solution(told, clauses) if told is not None else not satisfiable
    wrong = INSTANCES - correct
    return {"Time": round(STARTER_SECONDS * seconds / starter + PENALTY * wrong, 4), "Correct": correct}


if __name__ == "__main__":
    report(evaluate)
