"""From files to entries: in this process while there are few, in others while there are many.

A hundred thousand files take minutes of parsing. Done in a thread, that time would be taken from whoever looks at the
page, since Python runs one thread at a time. The others are plain processes that answer over their pipes and end when
these close, however this one ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from airloop_view.entry import Entry, read_entry
from airloop_view.folder import Folder

MANY = 64  # files from which on another process is worth its start
MOST_PROCESSES = 4


class Parser:
    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._workers: list[subprocess.Popen[bytes]] = []

    def stream(self, parts: Sequence[Sequence[Path]]) -> Iterator[list[Entry | None]]:
        """The entries of each part, in their order; None for a file that has gone, or that may not be read, since it
        was listed. While one part is used, the next is being read."""
        done = 0
        if sum(map(len, parts)) >= MANY:
            try:
                self._ask(parts[0])
                for place in range(len(parts)):
                    entries = self._answers()
                    if place + 1 < len(parts):
                        self._ask(parts[place + 1])
                    done = place + 1
                    yield entries
            except (OSError, EOFError, pickle.UnpicklingError):  # no memory, no processes: it goes on, more slowly
                pass
            finally:
                self.close()
        for part in parts[done:]:
            yield read_files(self._folder, part)

    def _ask(self, paths: Sequence[Path]) -> None:
        while len(self._workers) < max(1, min(MOST_PROCESSES, (os.cpu_count() or 2) - 1)):
            # Not in the terminal's group: Ctrl-C is for us, and closing the pipe is for them.
            self._workers.append(
                subprocess.Popen(
                    [sys.executable, "-m", "airloop_view.parse"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
        count = len(self._workers)
        shares = [paths[i * len(paths) // count : (i + 1) * len(paths) // count] for i in range(count)]
        for worker, share in zip(self._workers, shares, strict=True):
            assert worker.stdin
            pickle.dump((self._folder, share), worker.stdin)
            worker.stdin.flush()

    def _answers(self) -> list[Entry | None]:
        return [entry for worker in self._workers if worker.stdout for entry in pickle.load(worker.stdout)]

    def close(self) -> None:
        for worker in self._workers:
            with contextlib.suppress(OSError):
                assert worker.stdin
                worker.stdin.close()
            worker.terminate()
            worker.wait()
            if worker.stdout:
                worker.stdout.close()
        self._workers = []


def read_files(folder: Folder, paths: Sequence[Path]) -> list[Entry | None]:
    return [_read_file(folder, path) for path in paths]


def _read_file(folder: Folder, path: Path) -> Entry | None:
    try:
        return read_entry(folder.read(path), path)
    except OSError:
        return None


def answer(questions: IO[bytes], answers: IO[bytes]) -> None:
    """What a process of its own does, until nobody asks any more."""
    while True:
        try:
            folder, paths = pickle.load(questions)
        except EOFError:
            return
        pickle.dump(read_files(folder, paths), answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()


if __name__ == "__main__":
    answer(sys.stdin.buffer, sys.stdout.buffer)
