"""Attacks that read: the host's files and secrets, the memory of helpers, other sandboxes."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from support.attack_arena import IMAGE, SECRET, Arena

import airloop

REPOSITORY = Path(airloop.__file__).parents[1]


@pytest.mark.parametrize(
    "path",
    [
        "/etc/shadow",
        "/etc/sudoers",
        pytest.param("/etc/hostname", marks=pytest.mark.bubblewrap),  # a container's is its own
        f"{REPOSITORY}/pyproject.toml",
        f"{REPOSITORY}/airloop/sandbox/door/door.py",
        f"{REPOSITORY}/.git/config",
        f"{Path.home()}/.cache",
        f"{Path.home()}/.bashrc",
        "/var/log",
        "/run",
        pytest.param("/sys/kernel", marks=pytest.mark.bubblewrap),  # engines show it
        "/proc/1/root/etc/shadow",
        "/proc/1/cwd/../../../etc/shadow",
        "/proc/self/root/../etc/shadow",
        "/dev/mem",
        "/dev/kmsg",
        "/dev/vda",
        "/dev/sda",
    ],
)
def test_what_is_the_hosts_cannot_be_read(arena: Arena, path: str) -> None:
    assert arena.attack(f"cat {path} || ls {path}/*").exit_code != 0


def test_the_hosts_secrets_are_in_no_environment(arena: Arena) -> None:
    output = arena.attack(
        "python -c 'import time; time.sleep(1)' & sleep 0.3; cat /proc/[0-9]*/environ | tr '\\0' '\\n'"
    ).output
    assert "AIR_MARK=" in output  # so the environments were read
    assert SECRET not in output and "WANDB" not in output


SCAN = """
import hashlib, re
found = set()
with open("/proc/self/mem", "rb", 0) as memory:
    for line in open("/proc/self/maps"):
        place, rights = line.split()[:2]
        if rights[0] != "r" or "[v" in line:
            continue
        start, end = (int(part, 16) for part in place.split("-"))
        for at in range(start, end, 1 << 24):
            try:
                memory.seek(at)
                data = memory.read(min(1 << 24, end - at))
            except OSError:
                break
            for beginning, length, digest in {needles!r}:
                for match in re.finditer(beginning, data):
                    text = data[match.start() : match.start() + length]
                    if hashlib.sha256(text).hexdigest() == digest:
                        found.add(digest)
print("found", len(found))
"""


def needle(text: str) -> tuple[bytes, int, str]:
    """How it begins and what it hashes to: the scan must not find itself."""
    return text[:6].encode(), len(text), hashlib.sha256(text.encode()).hexdigest()


def test_the_memory_of_a_forked_python_holds_no_secret_and_no_script_of_others(arena: Arena) -> None:
    needles = [needle(SECRET), needle("neighbours-own-script"), needle("neighbours-argument")]

    async def work() -> str:
        other, own = await arena.sandbox(), await arena.sandbox()
        await other.run("python -c 'x = \"neighbours-own-script\"' neighbours-argument", 10)
        await own.put("scan.py", SCAN.format(needles=needles).encode())
        output = (await own.run("python scan.py 2>&1", 30)).output
        await other.close()
        await own.close()
        return output

    assert arena.do(work()) == "found 0\n"


def test_a_forked_python_knows_of_no_other_sandbox(arena: Arena) -> None:
    walk = """
import sys
frame, seen = sys._getframe(), set()
while frame:
    server = frame.f_locals.get("self")
    seen.update(getattr(server, "sandboxes", ()))
    frame = frame.f_back
print(len(seen), "sandboxes")"""

    async def work() -> str:
        other, own = await arena.sandbox(), await arena.sandbox()
        await own.put("walk.py", walk.encode())
        output = (await own.run("python walk.py", 10)).output
        await other.close()
        await own.close()
        return output

    assert arena.do(work()) in ("0 sandboxes\n", "1 sandboxes\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's sandboxes own root's files")
@pytest.mark.parametrize(
    "path", ["/proc/kpagecount", "/proc/kpageflags", "/proc/slabinfo", "/proc/vmallocinfo", "/proc/pagetypeinfo"]
)
def test_what_only_root_may_read_of_the_kernel_stays_hidden(arena: Arena, path: str) -> None:
    if not os.path.exists(path):
        pytest.skip("this kernel has none")
    assert arena.attack(f"head -c 64 {path} 2>/dev/null | wc -c").output.strip() == "0"


@pytest.mark.skipif(not os.path.isdir("/etc/ssl/private"), reason="this machine has no private keys' directory")
def test_the_hosts_private_keys_are_not_shown(arena: Arena) -> None:
    assert arena.attack("ls -A /etc/ssl/private").exit_code != 0


def test_other_processes_of_the_host_cannot_be_seen(arena: Arena) -> None:
    seen = arena.attack("ls /proc | grep -c '^[0-9]'; cat /proc/[0-9]*/comm | sort -u").output
    assert int(seen.split()[0]) < 10
    assert set(seen.split()[1:]) <= {"bash", "first", "sh", "cat", "sort", "grep", "ls"}


def test_the_workspace_of_another_sandbox_cannot_be_found(arena: Arena) -> None:
    async def work() -> str:
        other, own = await arena.sandbox(), await arena.sandbox()
        await other.run("echo needle-in-a-file > /tmp/needle.txt; cp /tmp/needle.txt .; cp /tmp/needle.txt /dev/shm", 5)
        output = (
            await own.run("find / -name 'needle*' -not -path '/proc/*/task/*' 2>/dev/null; cat /dev/shm/* /tmp/*", 20)
        ).output
        await other.close()
        await own.close()
        return output

    assert "needle" not in arena.do(work())


SELF = "cat /proc/1/cmdline /proc/self/cmdline /proc/$$/cmdline /proc/self/cgroup /proc/cmdline; env"


@pytest.mark.bubblewrap
@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_where_on_the_host_a_sandbox_is_made_is_not_told(arena: Arena, cold: bool) -> None:
    look = """
import os, sys
said = "".join(open(f"/proc/self/{name}").read() for name in ("cmdline", "cgroup", "environ"))
said += " ".join(sys.orig_argv) + open("/proc/1/cmdline").read() + open(f"/proc/{os.getppid()}/cmdline").read()
print(said.replace("\\0", " "))"""
    said = arena.python(look, cold=cold) + arena.attack(SELF).output.replace("\0", " ")
    assert f"{REPOSITORY}/airloop" not in said and "door.py" not in said and "bwrap" not in said
    assert f"air-{os.getpid()}" not in said and str(arena.backend.runtime.path) not in said
    paths = {line.split(":", 2)[2] for line in said.splitlines() if line[:1].isdigit() and line.count(":") == 2}
    assert paths <= {"/"}


@pytest.mark.bubblewrap
def test_mounts_name_neither_data_nor_what_we_bring_along(arena: Arena, tmp_path: Path) -> None:
    """Python is shown where it lies on the host, and a sandbox's own directory is named."""
    if not arena.backend.layered:
        pytest.skip("overlays cannot be made here: mounts tell where on the host they begin")
    data = tmp_path / "our-project" / "input"  # a name that /dev has, too
    data.mkdir(parents=True)
    (data / "x.csv").write_text("1\n")
    image = replace(IMAGE, binds=((str(data), "/home/agent/data"),))
    assert arena.attack("ls ~/data; cat ~/data/*", image=image).output.split() == ["x.csv", "1"]
    said = arena.attack("cat /proc/self/mountinfo /proc/self/mounts /proc/1/mountstats", image=image).output
    assert "/home/agent/data" in said and "our-project" not in said and str(tmp_path) not in said
    named = [line for line in said.splitlines() if str(arena.backend.runtime.path) in line]
    assert all(" /opt/air/run " in line for line in named)


@pytest.mark.bubblewrap
def test_data_beside_our_own_directory_is_a_layer_too(arena: Arena) -> None:
    """Its directory is above the empty one, so it is named; but a lock on it is not seen by others."""
    if not arena.backend.layered:
        pytest.skip("overlays cannot be made here")
    with tempfile.TemporaryDirectory(dir=arena.backend.runtime.path.parents[1]) as data:
        image = replace(IMAGE, binds=((data, "/home/agent/data"),))
        assert " overlay air " in arena.attack("grep agent/data /proc/self/mountinfo", image=image).output


@pytest.mark.bubblewrap
def test_a_script_is_called_as_its_agent_called_it(arena: Arena) -> None:
    said = arena.attack(
        "echo 'import time; time.sleep(60)' > t.py; python t.py --a 1 & "
        "until pgrep -fc '^python t.py --a 1$'; do sleep 0.1; done",
        timeout=20,
    )
    assert said.output.split()[-1] == "1"
