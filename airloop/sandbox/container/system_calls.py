"""The filter of system calls that containers run with: the engine's own, less what is refused under bubblewrap too.

Podman's lets a process enter a user namespace of its own, in which it has every capability, use the kernel's keys, and
read and write the memory of others of its user. Which calls it allows besides is the engine's business, so its own file
is taken and only ever made stricter. Docker has its filter built in, and no file to start from: there it stays as it
is, which refuses namespaces and keys.
"""

from __future__ import annotations

import errno
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airloop.sandbox.bubblewrap import seccomp

ALLOW, REFUSE = "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"


class NoFilter(Exception):
    """Why the engine's own filter stays."""


def write(source: str, target: Path) -> None:
    """Makes the filter in `source`, the engine's own, stricter. NoFilter where that cannot be done here."""
    if platform.machine() not in seccomp.ARCHITECTURES:
        raise NoFilter(f"no calls are known for {platform.machine()}")
    if not source:
        raise NoFilter("it does not tell where it lies")
    try:
        made = stricter(json.loads(Path(source).read_bytes()))
        target.write_text(json.dumps(made), encoding="utf-8")
    except OSError as error:
        raise NoFilter(f"{error.filename or target}: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise NoFilter(f"{source} is not understood: {error!r}") from error


def stricter(profile: Mapping[str, Any]) -> dict[str, Any]:
    """By name, so it holds for calls of 32-bit programs too. Threads and processes can be made, and no namespaces."""
    refused = {name for _, always, _ in seccomp.ARCHITECTURES.values() for name in always}
    looked_into = {"clone", "clone3"}
    rules = []
    for rule in profile["syscalls"]:
        names = [name for name in rule["names"] if name not in refused | looked_into]
        rules += [{**rule, "names": names}] if names else []
    namespaces = {"index": 0, "value": seccomp.NEW_NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
    rules += [
        {"names": sorted(refused), "action": REFUSE, "errnoRet": errno.EPERM},
        {"names": ["clone3"], "action": REFUSE, "errnoRet": errno.ENOSYS},  # libraries then take clone
        {"names": ["clone"], "action": ALLOW, "args": [namespaces]},
    ]
    return {**profile, "syscalls": rules}
