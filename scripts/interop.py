"""Makes the environments of the libraries that `make test-interop` tries, one each: they need not agree.

    python scripts/interop.py               # all of them
    python scripts/interop.py langgraph

What each has is in tests/interop/requirements/NAME.txt. Where that says "# with airloop", this tree is installed as
well, without its dependencies; "# above ours": the packages of the Python that runs this are seen from there, below its
own, so that torch is not installed twice; what a line "# without: …" names is taken out again; of what a line
"# source: …" names, the source distribution is beside it, for examples that are not installed. One that is as that file
wants it is left as it is. One that cannot be made keeps the reason beside it, and its tests are skipped with that
reason.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import threading
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from airloop.verifiers.installed import pip_error

ROOT = Path(__file__).resolve().parents[1]
WANTED = ROOT / "tests" / "interop" / "requirements"
PLACE = ROOT / ".venv-interop"
AT_ONCE = 2  # pip waits for the network half of its time
TIMEOUT_S = 900
WITH_AIRLOOP, ABOVE_OURS = "# with airloop", "# above ours"
_building = threading.Lock()  # of this tree: two at once would write into the same folder


def python_of(name: str) -> Path:
    return PLACE / name / "bin" / "python"


def reason_file(name: str) -> Path:
    return PLACE / f"{name}.failed"


def make(name: str) -> str:
    """What is to be said of it."""
    wanted = WANTED / f"{name}.txt"
    stamp = PLACE / name / "requirements.txt"
    if stamp.exists() and stamp.read_text() == wanted.read_text():
        return f"{name}: is there"
    began = time.monotonic()
    reason_file(name).unlink(missing_ok=True)
    venv.create(PLACE / name, clear=True, with_pip=False)
    if ABOVE_OURS in wanted.read_text():
        _show_ours(name)
    pip = [sys.executable, "-m", "pip", "--python", str(python_of(name)), "--disable-pip-version-check"]
    install = [*pip, "install", "--quiet", "--no-compile"]  # what is imported is compiled then: a small part of it
    problem = _run([*install, "-r", str(wanted)])
    for unwanted in re.findall(r"^# without: (.+)$", wanted.read_text(), re.MULTILINE):
        problem = problem or _run([*pip, "uninstall", "--quiet", "--yes", *unwanted.split()])
    if not problem and WITH_AIRLOOP in wanted.read_text():
        with _building:
            problem = _run([*install, "--no-deps", "-e", str(ROOT)])
    for named in re.findall(r"^# source: (.+)$", wanted.read_text(), re.MULTILINE):
        problem = problem or _source(named, PLACE / name / "source")
    if problem:
        shutil.rmtree(PLACE / name, ignore_errors=True)
        reason_file(name).write_text(problem)
        return f"{name}: cannot be installed: {problem}"
    shutil.copyfile(wanted, stamp)
    return f"{name}: installed in {time.monotonic() - began:.0f} s"


def _show_ours(name: str) -> None:
    """By a line in a file that Python reads at its start: a folder that it looks in last."""
    (packages,) = (PLACE / name / "lib").glob("python*/site-packages")
    (packages / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")


def _source(named: str, folder: Path) -> str:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    if problem := _run([*command, "--no-binary", named.partition("==")[0], named]):
        return problem
    for packed in folder.glob("*.tar.gz"):
        with tarfile.open(packed) as files:
            files.extractall(folder, filter="data")
    return ""


def _run(command: list[str]) -> str:
    """What went wrong."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"pip has not ended in {TIMEOUT_S} s"
    return pip_error(done.stderr) if done.returncode else ""


def main() -> None:
    names = sys.argv[1:] or sorted(path.stem for path in WANTED.glob("*.txt"))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for output in pool.map(make, names):
            print(output, flush=True)


if __name__ == "__main__":
    main()
