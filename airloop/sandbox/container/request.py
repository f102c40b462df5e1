"""What the engine is asked for: a container in which an agent can do no harm, and scripts that run inside it.

The scripts run as the agent's own user and see what the agent sees, so a link leads nowhere else. They need `bash`,
`tar`, `find`, `head` and `stat` of the image, whose system is read-only: an agent cannot replace them.
"""

from __future__ import annotations

import os
import string
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from airloop.errors import AirError
from airloop.sandbox.base import ENVIRONMENT, HOME, WORKSPACE, Image
from airloop.sandbox.shell import SUPERVISOR

USER = "1000:1000"
TOOLS = "bash tar find head stat mkdir rm"
SCRATCH = ("/tmp", "/var/tmp", "/run")
ALL_PROCESSES = 32768  # of one user on a host, at most: the kernel's own default
CPU_PERIOD_US = 100_000
PATH_MAX = 4096  # bytes, with the one that ends it: what is longer no system call takes
NO_TOOL = 100  # exit code of a container whose image lacks the first of them; 101 the second, and so on

# The first process. What the image lacks is said before anything else is tried. It goes on as a copy of its shell that
# may be run but not read, so that by the kernel's rule its memory may not be either: an agent cannot make it end as if
# it had been killed from outside. Where no such copy runs it goes on as it is.
FIRST = (
    f"code={NO_TOOL}; for tool in {TOOLS}; do command -v $tool >/dev/null || exit $code; code=$((code + 1)); done; "
    f"umask 022; mkdir -p {WORKSPACE} 2>/dev/null; "
    f"for place in {' '.join((*SCRATCH, HOME))}; do "
    "tar -chf - --mode=0111 -C /bin sh 2>/dev/null | tar -xpf - -C $place --no-same-owner 2>/dev/null; "
    '"$place/sh" -c : 2>/dev/null && exec "$place/sh" -c "rm -f $place/sh; $1"; done; eval "$1"'
)

# Waits beside the shell and sends signals, with nothing but what bash does itself: it works when the sandbox may start
# no further process. A line says how, from which tick since boot a process is new, and the shell's number.
SIGNALLER = r"""
trap '' INT TERM HUP QUIT PIPE USR1 USR2
IFS=' ' read -r up rest </proc/uptime; echo "$up"
while IFS=' ' read -r how since shell; do
  new=()
  for place in /proc/[0-9]*; do
    pid=${place#/proc/}
    [[ $pid == 1 || $pid == "$$" || $pid == "$shell" ]] && continue
    facts=; { IFS= read -r -d '' facts <"$place/stat"; } 2>/dev/null
    fields=(${facts##*) })
    [[ -n ${fields[19]} ]] && ((fields[19] >= since)) && new+=("$pid")
  done
  { case $how in
    interrupt) kill -INT "$shell" "${new[@]}" ;;
    kill) kill -KILL "${new[@]}"; kill -INT "$shell" ;;
    others) kill -KILL "${new[@]}" ;;
    stop) kill -STOP "$shell" "${new[@]}" ;;
    go) kill -CONT "${new[@]}" "$shell" ;;
    shell) kill -KILL "${new[@]}" "$shell" ;;
  esac; } 2>/dev/null
  echo done
done
"""

# Each knows the length of its input: not every engine passes the end of it on. PUT takes files only and removes what is
# in their way; RESTORE has directories too, some of which are there already.
UNPACK = 'set -o pipefail; head -c "$1" | tar -xpf - -C / --no-same-owner --delay-directory-restore'
PUT = f"{UNPACK} --recursive-unlink"
RESTORE = f"{UNPACK} --skip-old-files"
NOTHING = 44
GET = (
    'printf -v name %b "$1"; '
    f'[ -f "$name" ] && size=$(stat -L -c %s -- "$name") && [ "$size" -le "$2" ] || exit {NOTHING}; '
    'exec head -c "$3" -- "$name"'
)
LIST = f"cd {WORKSPACE} && exec find . -type f -print0"


def spelled(path: str) -> str:
    """For bash's printf %b: a request is JSON, and a file's name may be no text."""
    plain = frozenset((string.ascii_letters + string.digits + "/._-").encode())
    return "".join(chr(b) if b in plain else f"\\0{b:03o}" for b in os.fsencode(path))


def pack(place: str, skip: tuple[str, ...]) -> str:
    """Files, directories and links of a directory as a tar, without what is mounted into it. Left out, as what may not
    be read is: paths longer than the system takes. Of directories thousands deep the names alone are gigabytes."""
    unwanted = [glob_escaped(place.lstrip("/")) for place in skip] + ["?" * PATH_MAX + "*"]
    pruned = "".join(f"-path {quoted(pattern)} -prune -o " for pattern in unwanted)
    return (
        f"set -o pipefail; cd / && LC_ALL=C find {place.lstrip('/')} -mindepth 1 {pruned}"
        "\\( -type f -o -type d -o -type l \\) -print0"
        " | tar -cf - --no-recursion --hard-dereference --ignore-failed-read --warning=none --null -T -"
    )


def glob_escaped(text: str) -> str:
    return "".join(f"\\{c}" if c in "*?[]\\" else c for c in text)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@dataclass(frozen=True)
class Wishes:
    """What not every engine can do, and a container can be without."""

    fair_cpu: bool = True
    filter: str = ""  # a file with a filter of system calls; "": the engine's own

    def less(self, refusal: str) -> Wishes:
        """Without what the engine will not do, by its words. The same where they are about anything else."""
        words = refusal.lower()
        if self.filter and "seccomp" in words:
            return replace(self, filter="")
        return replace(self, fair_cpu=False) if "cpu" in words else self


def create_body(
    image: Image, mark: str, labels: Mapping[str, str], podman: bool, wishes: Wishes = Wishes()
) -> dict[str, Any]:
    """The body of POST /containers/create."""
    limits = image.limits
    disk = limits.disk_mb << 20
    # Podman would copy what the image has there, with its owner.
    own = f"rw,exec,nosuid,nodev,size={disk},mode=1777" + (",notmpcopyup" if podman else "")
    return {
        "Image": image.container,
        "Entrypoint": ["/bin/sh", "-c", FIRST, "sh", SUPERVISOR],
        "Cmd": [],
        "User": USER,
        "Hostname": "air",
        "WorkingDir": "/",
        "Env": [f"{name}={value}" for name, value in {**environment(image), "AIR_MARK": mark}.items()],
        "Labels": dict(labels),
        "Tty": False,
        "OpenStdin": True,
        "StdinOnce": False,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "NetworkDisabled": True,
        "StopSignal": "SIGKILL",  # the first process ignores any other
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "NetworkMode": "none",
            "IpcMode": "private",
            "CgroupnsMode": "private",
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges", *([f"seccomp={wishes.filter}"] if wishes.filter else [])],
            "LogConfig": {"Type": "none"},  # or everything an agent prints would be written to the host's disk
            "RestartPolicy": {"Name": "no"},
            "Memory": limits.memory_mb << 20,
            "MemorySwap": limits.memory_mb << 20,
            "PidsLimit": limits.processes,
            **(cpu_share(image) if wishes.fair_cpu else {}),
            "ShmSize": disk,
            "Ulimits": ulimits(image, podman),
            "Tmpfs": dict.fromkeys((HOME, *SCRATCH), own),
            "Mounts": mounts(image),
            "DeviceRequests": gpu_requests(image, podman),
        },
    }


def cpu_share(image: Image) -> dict[str, int]:
    """As a quota: a number of CPUs that is larger than the machine's, Docker refuses."""
    return {"CpuShares": 1024, "CpuPeriod": CPU_PERIOD_US, "CpuQuota": int(image.limits.cpus * CPU_PERIOD_US)}


def environment(image: Image) -> dict[str, str]:
    """On top of what the image itself sets: its PATH leads to its own python."""
    return {**ENVIRONMENT, **dict(image.env)}


def ulimits(image: Image, podman: bool) -> list[dict[str, Any]]:
    limits = image.limits
    values = {"nofile": limits.open_files, "fsize": limits.file_mb << 20, "cpu": limits.cpu_s, "core": 0}
    values |= {"sigpending": limits.signals, "msgqueue": 0}
    if podman:
        # Where Podman may not raise its own limit it fails unless told less. A sandbox is limited by its control group;
        # this counts all processes of the user on the host, so it has to be large.
        values["nproc"] = min(ALL_PROCESSES, _most_processes())
    return [{"Name": name, "Soft": value, "Hard": value} for name, value in values.items()]


def _most_processes() -> int:
    """Of this user; as many as wanted where nothing limits them, or the system (Windows) has no such limit."""
    try:
        import resource
    except ImportError:
        return ALL_PROCESSES
    most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    return ALL_PROCESSES if most == resource.RLIM_INFINITY else most


def mounts(image: Image) -> list[dict[str, Any]]:
    for source, _ in image.binds:
        if not os.path.exists(source):
            raise AirError(f"{source} is to be shown inside the sandbox and does not exist.", "check the path.")
    return [{"Type": "bind", "Source": source, "Target": place, "ReadOnly": True} for source, place in image.binds]


def gpu_requests(image: Image, podman: bool) -> list[dict[str, Any]]:
    """As `docker run --gpus device=7` and `podman run --device nvidia.com/gpu=7` ask."""
    if not image.gpus:
        return []
    if podman:
        return [{"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={gpu}" for gpu in image.gpus]}]
    return [{"Driver": "", "Count": 0, "DeviceIDs": list(image.gpus), "Capabilities": [["gpu"]], "Options": {}}]


def own_places(image: Image) -> list[str]:
    """Directories the agent must be able to write. The engine makes those above a bind, as root; and some give a file
    system in memory the owner and mode of what the image has in its place."""
    found = {HOME, *SCRATCH}
    for _, place in image.binds:
        parent = os.path.dirname(os.path.normpath(place))
        while parent.startswith(HOME + "/"):
            found.add(parent)
            parent = os.path.dirname(parent)
    return sorted(found)
