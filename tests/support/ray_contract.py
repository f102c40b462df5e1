"""What every launcher must do, asked of the one above Ray: `python -m support.ray_contract FOLDER`, in an environment
that has Ray, with RAY_ADDRESS."""

from __future__ import annotations

import sys
from pathlib import Path

from support.launcher_contract import CHECKS, new_run

from airloop.cluster.launcher import ClusterLauncher
from airloop.cluster.ray_nodes import RayNodes


def main() -> None:
    for check in CHECKS:
        run = new_run(Path(sys.argv[1]), 2)
        launcher = ClusterLauncher(RayNodes(), lambda text: None)
        try:
            check(launcher, run)
        finally:
            launcher.close()
            run.close()
        print(check.__name__, flush=True)


if __name__ == "__main__":
    main()
