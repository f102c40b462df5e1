"""What every launcher must do, asked of the one above Ray: called in an environment that has Ray, with RAY_ADDRESS."""

from __future__ import annotations

import sys
from pathlib import Path

from support.launcher_contract import check_launcher, new_run

from airloop.cluster.launcher import ClusterLauncher
from airloop.cluster.ray_nodes import RayNodes


def main() -> None:
    run = new_run(Path(sys.argv[1]), nodes=2, ranks=4)
    launcher = ClusterLauncher(RayNodes(), print)
    try:
        check_launcher(launcher, run)
    finally:
        launcher.close()
        run.close()
