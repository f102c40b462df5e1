"""A backend by name. The next one is never taken by itself: where a sandbox is weaker, a person has chosen it."""

from __future__ import annotations

from airloop.errors import AirError
from airloop.sandbox.base import Backend
from airloop.sandbox.interpreter import PACKAGES, PRELOAD


def make_backend(
    name: str,
    python: str = "",
    packages: tuple[str, ...] = PACKAGES,
    preload: tuple[str, ...] = PRELOAD,
    rehearsal: str = "",
    warm_python: bool = True,
    syscalls: str = "",
    runtime: str = "",
) -> Backend:
    """`packages` are those that agents see, `preload` what their warm Python has imported, `rehearsal` what it has
    run once. A container has what its image has. Without a warm Python sandboxes start sooner, and scripts later.
    `syscalls`: "strict" allows only those that are known to be used; else only those of escapes are refused. `runtime`:
    by what the engine runs containers, as runsc, which has a kernel of its own; else as it always does."""
    if syscalls not in ("", "strict"):
        raise AirError(f"There is no filter of system calls {syscalls!r}.", 'leave it out, or use "strict".')
    if name == "bubblewrap":
        if runtime:
            problem = f"container_runtime = {runtime!r} is for containers, and the sandbox is bubblewrap."
            raise AirError(problem, 'leave it out, or use sandbox = "container".')
        from airloop.sandbox.bubblewrap.backend import Bubblewrap

        return Bubblewrap(python, packages, warm_python, preload, rehearsal, syscalls)
    if name == "container":
        if syscalls:
            problem = "The container sandbox has its engine's filter of system calls, and none of its own."
            raise AirError(problem, 'leave out syscalls, or use sandbox = "bubblewrap".')
        from airloop.sandbox.container.backend import Container

        return Container(runtime)
    raise AirError(f"There is no sandbox {name!r}.", "use bubblewrap or container.")
