"""A container engine for the tests, and an image made of this machine's own programs: no registry is needed."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import httpx

from airloop.errors import AirError
from airloop.sandbox.container.docker_api import find_socket

PROGRAMS = [
    *(
        "sh",
        "bash",
        "basename",
        "cat",
        "chmod",
        "cp",
        "date",
        "dd",
        "dirname",
        "env",
        "false",
        "find",
        "grep",
        "head",
        "id",
    ),
    *(
        "ln",
        "ls",
        "mkdir",
        "mkfifo",
        "mknod",
        "mv",
        "nohup",
        "printf",
        "pwd",
        "readlink",
        "rm",
        "rmdir",
        "seq",
        "setsid",
    ),
    *(
        "sleep",
        "sort",
        "stat",
        "tail",
        "tar",
        "tee",
        "timeout",
        "touch",
        "tr",
        "true",
        "truncate",
        "uname",
        "wc",
        "yes",
    ),
]
LEFT_OUT = {"test", "idlelib", "tkinter", "ensurepip", "lib2to3", "site-packages", "dist-packages", "__pycache__"}
START_S = END_S = 120.0  # seconds at most, on a quiet machine
WORK_S = 600.0  # for what takes seconds on a quiet machine: a first look at its storage, an image


class NoEngine(Exception):
    """Why no container can be started here."""


@contextlib.contextmanager
def engine() -> Iterator[str]:
    """The socket of an engine: one that runs already, or a Podman of our own that ends with the tests."""
    with contextlib.suppress(AirError):
        yield find_socket()
        return
    if shutil.which("podman") is None:
        raise NoEngine("no Docker or Podman answers, and podman is not installed")
    if os.geteuid() != 0 and shutil.which("newuidmap") is None:
        raise NoEngine("podman without root needs newuidmap")
    store = Path(tempfile.gettempdir()) / f"air-tests-podman-{os.getuid()}"
    command = podman(store)
    with tempfile.TemporaryDirectory(prefix="air-") as folder:
        path = f"{folder}/engine.sock"
        with open(f"{folder}/log", "wb") as log:
            # Its monitor leaves a file "oom" where it stands when a container runs out of memory.
            serve = [*command, "system", "service", "--time=0", f"unix://{path}"]
            service = subprocess.Popen(serve, stderr=log, cwd=store)
        try:
            wait_for(path, service, Path(folder) / "log")
            yield path
        finally:
            service.terminate()
            try:
                service.wait(END_S)  # it ends its containers first
            except subprocess.TimeoutExpired:
                service.kill()
                service.wait()


def podman(store: Path) -> list[str]:
    """Its storage stays between runs, so that the image is imported once."""
    base = ["podman", "--root", f"{store}/root", "--runroot", f"{store}/run", "--cgroup-manager", "cgroupfs"]
    base += ["--events-backend", "file", *(["--runtime", "runc"] if shutil.which("runc") else [])]
    said = ""
    for driver in ("overlay", "vfs"):
        command = [*base[:1], "--storage-driver", driver, *base[1:]]
        try:
            tried = subprocess.run([*command, "info"], capture_output=True, text=True, timeout=WORK_S)
        except subprocess.TimeoutExpired:
            raise NoEngine(f"`podman info` does not answer in {WORK_S:.0f} s") from None
        if tried.returncode == 0:
            return command
        said = tried.stderr.strip()
    raise NoEngine(f"podman does not work here: {said}")


def wait_for(path: str, service: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while not os.path.exists(path):
        if service.poll() is not None or time.monotonic() > deadline:
            raise NoEngine(f"podman's service does not start: {log.read_text()[-500:]}")
        time.sleep(0.05)


# --- the image ---------------------------------------------------------------------------------------------------


def import_image(path: str, name: str, files: Iterable[str], links: Iterable[tuple[str, str]]) -> str:
    """An image named after its content, imported unless the engine has it. `localhost/`: no registry is asked."""
    files, links = sorted(set(files)), sorted(set(links))
    facts = [(place, os.stat(place).st_size, os.stat(place).st_mtime_ns) for place in files]
    full = f"localhost/{name}-{hashlib.sha256(repr((facts, links)).encode()).hexdigest()[:16]}"
    transport = httpx.HTTPTransport(uds=path)
    with httpx.Client(transport=transport, base_url="http://engine", trust_env=False, timeout=WORK_S) as client:
        if client.get(f"/images/{full}:latest/json").status_code != 200:
            headers = {"content-type": "application/x-tar"}
            content = packed(files, links)
            answer = client.post(
                "/images/create", params={"fromSrc": "-", "repo": full}, content=content, headers=headers
            )
            if answer.status_code != 200 or '"error"' in answer.text:
                raise NoEngine(f"the image could not be imported: {answer.text[:300]}")
    return f"{full}:latest"


def packed(files: list[str], links: list[tuple[str, str]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:") as tar:
        for place in ("etc", "proc", "sys", "dev", "tmp", "run", "var/tmp", "home"):
            folder = tarfile.TarInfo(place)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        for place, target in links:
            link = tarfile.TarInfo(place.lstrip("/"))
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        for place in files:
            file = tarfile.TarInfo(place.lstrip("/"))
            file.size, file.mode = os.stat(place).st_size, os.stat(place).st_mode & 0o755 | 0o444
            with open(place, "rb") as content:
                tar.addfile(file, content)
    return out.getvalue()


def image_files(programs: Iterable[str] = PROGRAMS, python: bool = True) -> tuple[set[str], set[tuple[str, str]]]:
    """Programs, the libraries they load, and a Python; and the links under which they are found."""
    files: set[str] = set()
    links = {(place, os.readlink(place)) for place in ("/bin", "/lib", "/lib64", "/sbin") if os.path.islink(place)}
    for program in programs:
        found = shutil.which(program, path="/usr/bin:/bin")
        if found is None:
            raise NoEngine(f"this machine has no {program} to make an image of")
        files |= with_libraries(found)
        if (real := os.path.realpath(found)) != (place := canonical(found)):
            links.add((place, real))
    if python:
        more, link = python_files()
        files |= more
        links |= {link, ("/usr/bin/python", link[1])}
    return files, links - {(place, place) for place, _ in links}


def python_files() -> tuple[set[str], tuple[str, str]]:
    executable = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else os.path.realpath(sys.executable)
    command = [executable, "-I", "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))"]
    library = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    files = with_libraries(executable)
    for folder, folders, names in os.walk(library):
        folders[:] = [f for f in folders if f not in LEFT_OUT and not f.startswith("config-")]
        for name in names:
            place = f"{folder}/{name}"
            files |= with_libraries(place) if ".so" in name else {place} if os.path.isfile(place) else set()
    return files, ("/usr/bin/python3", os.path.realpath(executable))


def with_libraries(program: str) -> set[str]:
    said = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    libraries = {word for word in said.split() if word.startswith("/") and os.path.isfile(word)}
    return {os.path.realpath(program), *(canonical(place) for place in libraries)}


def canonical(place: str) -> str:
    """Where a file lies when /lib is a link to /usr/lib. Its own name stays: that is what it is looked up by."""
    return os.path.join(os.path.realpath(os.path.dirname(place)), os.path.basename(place))
