"""The launchers that cluster.launcher names: a new one is a file and its line in the table."""

from __future__ import annotations

from typing import NamedTuple


class LauncherSpec(NamedTuple):
    make: str  # module:function that takes a Say, and returns a Launcher (airloop/launch/base.py)
    several: bool  # it is for several machines, else for this one


# Where none is named, the first that is for as many machines.
LAUNCHERS = {
    "local": LauncherSpec("airloop.launch.local:local_launcher", several=False),
    "ray": LauncherSpec("airloop.cluster.ray_nodes:ray_launcher", several=True),
}
