"""What the sandboxes of one bubblewrap backend share: the program, its runtime directory, control groups, the filter of
system calls, the interpreter, and the doors into the sandboxes."""

from __future__ import annotations

import logging
from itertools import count
from typing import Protocol

from airloop.sandbox.base import Image
from airloop.sandbox.bubblewrap import cgroups, seccomp
from airloop.sandbox.bubblewrap.layers import Layers, covers_work, mount_points, work_here
from airloop.sandbox.bubblewrap.masks import Masks, to_be_masked
from airloop.sandbox.bubblewrap.runtime import RuntimeDirectory
from airloop.sandbox.door.doorkeeper import Door
from airloop.sandbox.interpreter import interpreter

log = logging.getLogger(__name__)


class OpenSandbox(Protocol):
    """As far as the backend must know a sandbox to end it."""

    async def close(self) -> None: ...

    def abandon(self) -> None: ...


class Host:
    """`bwrap`: the program's path. Sandboxes use it; the backend is one (backend.py)."""

    def __init__(
        self,
        bwrap: str,
        python: str,
        packages: tuple[str, ...],
        warm_python: bool,
        preload: tuple[str, ...],
        rehearsal: str,
        syscalls: str,
    ) -> None:
        self.bwrap = bwrap
        cgroups.reap()
        self.runtime = RuntimeDirectory()
        self.groups = cgroups.find()
        self.filter = seccomp.program(self.groups.memory is not None, syscalls == "strict")
        self.filtered = "filter: only calls that are known to be used" if syscalls == "strict" else "filter"
        self.interpreter = interpreter(python, packages)
        self.runtime.install_python(self.interpreter.executable)
        self.runtime.install_first()
        self.layered = work_here(self.runtime.path / "layers")
        self.masks = self._make_masks() if self.layered else None
        self._doors: dict[str, Door] = {}
        self.warm_python = warm_python
        self.warming_up = (preload, rehearsal)  # of the Python that agents' scripts are forked from
        self._names = count()
        self.sandboxes: set[OpenSandbox] = set()

    def door(self, name: str) -> Door:
        """ "files" moves files; "python" has the libraries of agents loaded. Started when first needed."""
        door = self._doors.get(name)
        if door is not None and not door.alive:
            words = f"; its last output lines:\n{said}" if (said := door.last_output()) else ""
            log.warning(
                "the sandbox's door %r ended with %s; another is started%s", name, door.process.returncode, words
            )
            door.close()
            door = None
        if door is None:
            warming_up = self.warming_up if name == "python" else ((), "")
            door = self._doors[name] = Door(self.runtime.path, name, self.interpreter.executable, *warming_up)
        return door

    def layers(self, image: Image) -> Layers | None:
        if not self.layered:
            return None
        runtime = self.runtime.path
        data = [source for source, _ in image.binds]
        covers = self.masks.covers() if self.masks else ()
        return Layers.of(runtime / "layers", runtime.parent, self.sources(), data, covers)

    def _make_masks(self) -> Masks | None:
        """None where they cannot be made."""
        masks = Masks(self.runtime.path / "masks", to_be_masked(self.interpreter, mount_points()))
        try:
            works = covers_work(self.runtime.path / "layers", list(masks.covers()))
        except OSError as error:
            log.info("every package is mounted by itself: %s", error)
            return None
        return masks if works else None

    def open_doors(self) -> list[Door]:
        return [door for door in self._doors.values() if door.alive]

    def sources(self) -> list[str]:
        """What of the host every sandbox is shown, as far as it may lie on a file system of its own."""
        return ["/usr", "/etc", *self.interpreter.shown]

    def new_name(self) -> str:
        return f"w{next(self._names)}"
