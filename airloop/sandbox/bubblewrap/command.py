"""bwrap's command line for an image: what is seen inside, and what is not."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from airloop.errors import AirError
from airloop.sandbox.base import ENVIRONMENT, HOME, WORKSPACE, Image
from airloop.sandbox.bubblewrap.host import Host
from airloop.sandbox.bubblewrap.layers import DEVICES, Layers
from airloop.sandbox.bubblewrap.masks import SHARE
from airloop.sandbox.interpreter import Interpreter
from airloop.sandbox.shell import SUPERVISOR

SYSTEM_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
COVERED = ("/usr/src", "/usr/local/share", "/usr/lib/R", "/usr/local/lib/R")  # shown empty
ETC = (
    "alternatives",
    "fonts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "ssl/certs",
    "ssl/openssl.cnf",
)
# Root inside may own these as far as the kernel is concerned: without this, it could set the host's parameters.
PROC_READ_ONLY = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "driver")
# Of `locks` those of every sandbox are shown, whosever they are: a way to pass messages.
PROC_HIDDEN = (
    *("locks", "cmdline", "modules", "partitions"),
    *("kcore", "keys", "key-users", "timer_list", "sched_debug", "kallsyms", "config.gz", "kmsg"),
    *("kpagecgroup", "kpagecount", "kpageflags", "slabinfo", "vmallocinfo", "pagetypeinfo", "mtrr"),
)
GPU_DEVICES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
PATH = "/opt/air/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PROXY_PORT = 3128
Seen = Callable[[str], str]  # a path of the host as bwrap is told it
Masked = Callable[[str], str | None]  # likewise one that is shown in part, where one mount does that


def command_line(
    host: Host, image: Image, directory: Path, mark: str, fds: Mapping[str, int], layers: Layers | None = None
) -> list[str]:
    """`directory` is the sandbox's own on the host, shown as /opt/air/run."""
    seen: Seen = layers.seen if layers else str
    disk = str(image.limits.disk_mb << 20)
    line = [host.bwrap, "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    line += ["--unshare-cgroup-try", "--die-with-parent", "--as-pid-1", "--hostname", "air", "--uid", "1000"]
    line += ["--gid", "1000", "--cap-drop", "ALL", "--clearenv"]
    masked: Masked = layers.masked if layers else lambda _: None
    line += _system(host.runtime.path, seen, masked)
    line += ["--proc", "/proc", *_proc(layers), "--dev", "/dev"]
    if layers:
        for name in DEVICES:
            line += ["--dev-bind", layers.device(name), f"/dev/{name}"]
    line += ["--size", disk, "--perms", "1777", "--tmpfs", "/dev/shm"]
    for device in _devices(image):
        line += ["--dev-bind", device, device]
    line += ["--remount-ro", "/dev", "--size", disk, "--perms", "1777", "--tmpfs", "/tmp"]
    line += ["--perms", "0755", "--dir", "/home", "--size", disk, "--perms", "0755", "--tmpfs", HOME]
    line += ["--perms", "0755", "--dir", WORKSPACE]
    line += _python(host.interpreter, seen, masked)  # after /tmp: a virtual environment may lie there
    line += ["--ro-bind", seen(str(host.runtime.path / "bin")), "/opt/air/bin"]
    line += ["--ro-bind", str(directory), "/opt/air/run"]
    for source, place in image.binds:
        line += ["--ro-bind", layers.seen_now(source) if layers else source, place]
    line += ["--remount-ro", "/", "--chdir", WORKSPACE]
    for name, value in {**environment(image), "AIR_MARK": mark}.items():
        line += ["--setenv", name, value]
    line += ["--info-fd", str(fds["info"]), "--block-fd", str(fds["block"])]
    if "seccomp" in fds:
        line += ["--seccomp", str(fds["seccomp"])]
    return [*line, "--", "/opt/air/bin/first", "-c", SUPERVISOR]


def _system(runtime: Path, seen: Seen, masked: Masked) -> list[str]:
    line = ["--ro-bind", seen("/usr"), "/usr"]
    if share := masked("/usr/share"):
        line += ["--ro-bind", share, "/usr/share"]
    else:
        line += ["--tmpfs", "/usr/share"]
        for name in SHARE:
            line += ["--ro-bind-try", seen(f"/usr/share/{name}"), f"/usr/share/{name}"]
        line += ["--remount-ro", "/usr/share"]
    for hidden in COVERED:
        if os.path.isdir(hidden):
            line += ["--tmpfs", hidden, "--remount-ro", hidden]
    for place in SYSTEM_LINKS:
        if os.path.islink(place):
            line += ["--symlink", os.readlink(place), place]
        elif os.path.isdir(place):
            line += ["--ro-bind", seen(place), place]
    for name in ETC:
        line += ["--ro-bind-try", seen(f"/etc/{name}"), f"/etc/{name}"]
    for file in sorted((runtime / "etc").iterdir()):
        line += ["--ro-bind", seen(str(file)), f"/etc/{file.name}"]
    return line


def is_shown(place: str) -> bool:
    """Whether every sandbox shows a directory of the host that is none of its parts: one put below /usr."""
    inside = f"{os.path.realpath(place)}/"
    return inside.startswith("/usr/") and not inside.startswith(tuple(f"{c}/" for c in ("/usr/share", *COVERED)))


def _python(python: Interpreter, seen: Seen, masked: Masked) -> list[str]:
    """Directories that hold packages are covered first, then what may be seen is put back; a mask does both.

    A cover needs a directory below it: one that is not shown already needs none.
    """
    line: list[str] = []
    masks = {h: mask for h in python.hidden if (mask := masked(h))}
    covered = [h for h in python.hidden if h.startswith("/usr/")]
    inner = [h for h in python.hidden if any(h.startswith(s + "/") for s in python.shown)]
    packages = [s for s in python.shown if any(s.startswith(h + "/") for h in python.hidden)]
    for path in python.shown:
        if path not in packages and not path.startswith("/usr/"):
            line += ["--ro-bind", seen(path), path]
    covers = [h for h in dict.fromkeys([*covered, *inner]) if h not in masks]
    for path in covers:
        line += ["--tmpfs", path]
    for path, mask in masks.items():
        line += ["--ro-bind", mask, path]
    for path in packages:
        if os.path.dirname(path) not in masks:
            line += ["--ro-bind", seen(path), path]
    for path in covers:
        line += ["--remount-ro", path]
    if python.executable != python.real and not python.executable.startswith("/usr/"):
        folder = os.path.dirname(python.executable)
        for name in dict.fromkeys([os.path.basename(python.executable), "python", "python3"]):
            line += ["--symlink", python.real, f"{folder}/{name}"]
    return line


def _proc(layers: Layers | None) -> list[str]:
    line: list[str] = []
    for name in PROC_READ_ONLY:
        if os.path.exists(f"/proc/{name}"):
            line += ["--ro-bind", layers.proc(name) if layers else f"/proc/{name}", f"/proc/{name}"]
    nothing = layers.device("null") if layers else "/dev/null"
    for name in PROC_HIDDEN:
        if os.path.exists(f"/proc/{name}"):
            line += ["--ro-bind", nothing, f"/proc/{name}"]
    return line


def _devices(image: Image) -> list[str]:
    if not image.gpus:
        return []
    return [*(f"/dev/nvidia{gpu}" for gpu in image.gpus), *(d for d in GPU_DEVICES if os.path.exists(d))]


def check_gpus(wanted: Sequence[str]) -> None:
    """Refuses a GPU that this machine does not have: without its device, agents would compute on the CPU and nobody
    would say so."""
    absent = [gpu for gpu in wanted if not os.path.exists(f"/dev/nvidia{gpu}")]
    if not absent:
        return
    there = sorted((p.name.removeprefix("nvidia") for p in Path("/dev").glob("nvidia[0-9]*")), key=int)
    have = f"the GPUs here are {', '.join(there)}" if there else "this machine has none that can be shown to a sandbox"
    raise AirError(
        f"Agents are to see the GPU{'s' * (len(absent) > 1)} {', '.join(absent)}, and {have}.",
        f'set env_gpu = "{there[0]}" in this environment\'s args.' if there else "remove env_gpu from its args.",
    )


def environment(image: Image) -> dict[str, str]:
    env = {"PATH": PATH, **ENVIRONMENT}
    if image.network:
        env |= dict.fromkeys(
            ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), f"http://127.0.0.1:{PROXY_PORT}"
        )
    return env | dict(image.env)
