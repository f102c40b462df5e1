"""What a config asks to log to: whether it is installed here, and whether there is a key for it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from airloop.config.schema import RunConfig
from airloop.errors import AirError
from airloop.extras import install_line


def wandb_key() -> tuple[bool, str]:
    """Whether there is a Weights & Biases key, and where it was found or looked for."""
    if os.environ.get("WANDB_API_KEY"):
        return True, "WANDB_API_KEY"
    netrc = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("://")[-1].split("/")[0]
    if netrc.is_file() and host in netrc.read_text(encoding="utf-8", errors="replace"):
        return True, str(netrc)
    return False, f"WANDB_API_KEY is not set and {netrc} has no entry for {host}"


def check_wandb(config: RunConfig) -> None:
    """Refuse online logging without a key now, not after the model has loaded (A7)."""
    if config.wandb is None or config.wandb.offline is not False:
        return
    found, where = wandb_key()
    if not found:
        raise AirError(
            f"[wandb] offline = false needs a Weights & Biases key, and there is none: {where}.",
            "log offline and run `wandb sync` later:\n    [wandb]\n    offline = true\n"
            "  or set the key: export WANDB_API_KEY=…",
        )


def check_sinks(config: RunConfig) -> None:
    """Refuse what the config asks to log to and this machine has not installed."""
    for name, asked in (("wandb", config.wandb), ("tensorboard", config.tensorboard)):
        if asked is not None and not _installed(name):
            raise AirError(
                f"The config has a [{name}] section, but the package {name} is not installed.",
                f"{install_line(name)}\n  or delete the section: metrics.jsonl is always written.",
            )


def _installed(name: str) -> bool:
    """A directory `wandb` where the command is started looks like a package, too: it has no file of its own."""
    found = importlib.util.find_spec(name)
    return found is not None and found.origin is not None
