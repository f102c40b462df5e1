"""A worker process: reads one request per line, fits, answers with one line. It ends when its parent does.

Requests come through a thread, so that the end of the pipe (the parent is gone, however it went) is seen
in the middle of a fit, too.
"""

from __future__ import annotations

import json
import os
import threading
import traceback
from queue import SimpleQueue
from typing import Any

from airloop.errors import AirError


def answer(request: dict[str, Any]) -> dict[str, Any]:
    from airloop.envs.tune.catalogue import BY_NAME
    from airloop.envs.tune.fitting import fit
    from airloop.envs.tune.tables import load_table

    try:
        dataset = BY_NAME[request["dataset"]]
        if request["digest"] and (found := load_table(dataset).digest) != request["digest"]:
            raise AirError(
                f"The table {dataset.name!r} here ({found}) is not the one its baseline was measured on "
                f"({request['digest']}): another version of {dataset.source.partition(':')[0]}?",
                "measure again: python -m airloop.envs.tune.measure",
            )
        return {"scores": fit(dataset, request["seed"], request["config"])}
    except AirError as error:
        return {"problem": error.problem, "fix": error.fix}
    except Exception:
        return {"defect": traceback.format_exc()}


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not get between the replies
    requests: SimpleQueue[bytes] = SimpleQueue()

    def read() -> None:
        for line in open(0, "rb", closefd=False):  # noqa: SIM115 - sys.stdin may be another's, in a fork
            requests.put(line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    import airloop.envs.tune.fitting  # noqa: F401 - the slow import, before the first request

    print(json.dumps({"ready": os.getpid()}), file=replies, flush=True)
    while True:
        print(json.dumps(answer(json.loads(requests.get()))), file=replies, flush=True)
