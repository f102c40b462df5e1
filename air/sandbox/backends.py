"""A backend by name. The next one is never taken by itself: where a sandbox is weaker, a person has chosen it."""

from __future__ import annotations

from air.errors import AirError
from air.sandbox.base import Backend


def make_backend(name: str, python: str = "") -> Backend:
    if name == "bubblewrap":
        from air.sandbox.bubblewrap import Bubblewrap

        return Bubblewrap(python)
    if name == "container":
        from air.sandbox.container import Container

        return Container()
    raise AirError(f"There is no sandbox {name!r}.", "use bubblewrap or container.")
