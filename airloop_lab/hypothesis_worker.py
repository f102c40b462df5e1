"""One run of a hypothesis, in a process of its own: python -m airloop_lab.hypothesis_worker RUN

The run is there already, planned or stopped, and says in its status.json which side it is and which fault it has. The
supervised start is made before any fault is put in: only what comes after it differs between the sides. What the
weights of a faulty run are worth is measured afterwards, with the fault taken out.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

from airloop import interrupts
from airloop.errors import AirError, Stopped
from airloop.eval.evaluate import EvalOptions, evaluate
from airloop.files import read_object
from airloop.locks import locked
from airloop.runs.run import Run
from airloop.text.keys import print_no_keys
from airloop.watch.display.display import Display
from airloop_lab.faults import fault_on

FAULT_FREE = "fault_free"  # in the run's directory: its weights, evaluated with the fault taken out


def main() -> None:
    threading.Thread(target=_end_with_the_lab, daemon=True).start()
    interrupts.install_launcher_handlers()
    print_no_keys()
    try:
        work(Path(sys.argv[1]))
    except (KeyboardInterrupt, Stopped):
        sys.exit(130)
    except AirError as error:
        print(f"air: {error}", file=sys.stderr)
        sys.exit(1)


def work(path: Path) -> None:
    from airloop.training import start

    run = Run.open(path)
    status = run.status()
    fault = status["lab"]["fault"]
    with Display() as display:
        if status["status"] != "completed":
            if run.config.warmstart and not run.config.model.adapter:
                _start_supervised(run, display)
            with fault_on(fault) if fault else nullcontext():
                print(start(run.config, display, resume=run.path).text)
        if fault and not evaluated_fault_free(path):
            evaluate((), EvalOptions(agent=f"run:{path}", out=path / FAULT_FREE), display)


def evaluated_fault_free(run: Path) -> bool:
    file = run / FAULT_FREE / "evaluation.json"
    return file.is_file() and bool(read_object(file)["finished"])


def _start_supervised(run: Run, display: Display) -> None:
    from airloop.start_checkpoint import KEPT
    from airloop.warmstart import warmstart, warmstart_directory

    made = warmstart_directory(run.config)
    # Both sides of a seed have the same supervised start: the first makes it, the other waits and finds it.
    with locked(made.with_name(f".{made.name}.lock")):
        asyncio.run(warmstart(run.config, display, keep=run.path / KEPT, fence=run.fence))


def _end_with_the_lab() -> None:
    """The lab writes nothing: the pipe's end means that it is gone, however it went. All that ended is on disk."""
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    main()
