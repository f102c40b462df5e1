"""Downloads by other tools, watched by what they have written: how many bytes there are, and whether more come."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from airloop.waits import Wait, waiting

# Nothing more has come for so long: the other side is gone. A slow line that goes on is waited for.
STILL_S = 900.0
LOOK_S = 1.0
MB = 1_000_000


@contextlib.contextmanager
def growing(what: str, owner: str, folder: Path, total: int = 0) -> Iterator[Wait]:
    """A wait whose progress is the size of a folder, from what it is now."""
    first, end = folder_bytes(folder), threading.Event()

    def look(wait: Wait) -> None:
        seen = 0
        while not end.wait(LOOK_S):
            if (size := folder_bytes(folder) - first) > seen:
                seen = size
                wait.progress(f"{seen / MB:.0f} of {total / MB:.0f} MB" if total else f"{seen / MB:.0f} MB")

    with waiting(what, owner, STILL_S) as wait:
        thread = threading.Thread(target=look, args=(wait,), name="air-download", daemon=True)
        thread.start()
        try:
            yield wait
        finally:
            end.set()
            thread.join(timeout=2 * LOOK_S)


def run_download(
    command: Sequence[str], folder: Path, what: str, owner: str, total: int = 0
) -> subprocess.CompletedProcess[str]:
    """Runs a command that downloads into `folder`; TimeoutExpired when nothing more has come for STILL_S."""
    # Its unfinished files are there, too, so that they are seen to grow.
    environment = {**os.environ, "TMPDIR": str(folder)}
    with growing(what, owner, folder, total) as wait:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", errors="replace", env=environment
        )
        try:
            while True:
                try:
                    out, errors = process.communicate(timeout=LOOK_S)
                    return subprocess.CompletedProcess(command, process.returncode, out, errors)
                except subprocess.TimeoutExpired:
                    if wait.still(time.monotonic()) > STILL_S:
                        raise subprocess.TimeoutExpired(command, STILL_S) from None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def folder_bytes(folder: Path) -> int:
    """Of all files in it, links not followed: those of the hub's cache lead to others that are counted."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # renamed meanwhile
                path = os.path.join(place, name)
                total += 0 if os.path.islink(path) else os.path.getsize(path)
    return total


def hub_folder(name: str) -> Path:
    """Where the hub's downloader puts a model, unfinished files included."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"


def hub_bytes(name: str, patterns: Sequence[str], timeout_s: float) -> int:
    """Of the files that are wanted; 0 if the hub does not say."""
    from huggingface_hub import HfApi

    try:
        files = HfApi().model_info(name, files_metadata=True, timeout=timeout_s).siblings or []
    except Exception:  # it is only shown
        return 0
    return sum(file.size or 0 for file in files if any(fnmatch(file.rfilename, p) for p in patterns))
