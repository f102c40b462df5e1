"""What a container's processes may ask the kernel for, and what becomes of it with an engine that knows no better."""

from __future__ import annotations

import asyncio
import json
import logging
import platform
from dataclasses import replace
from pathlib import Path

import pytest

from airloop.sandbox.base import Image
from airloop.sandbox.bubblewrap.seccomp import ARCHITECTURES
from airloop.sandbox.container import system_calls
from airloop.sandbox.container.backend import Container
from airloop.sandbox.container.request import Wishes, create_body
from airloop.sandbox.container.system_calls import NoFilter, stricter

# In the form of Podman's own, with what it lets through.
PROFILE = {
    "defaultAction": "SCMP_ACT_ERRNO",
    "defaultErrnoRet": 38,
    "archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86"]}],
    "syscalls": [
        {"names": ["kexec_load"], "action": "SCMP_ACT_ERRNO", "args": [], "errnoRet": 1},
        {"names": ["clone", "clone3", "ptrace", "read", "unshare"], "action": "SCMP_ACT_ALLOW", "args": []},
        {"names": ["bpf"], "action": "SCMP_ACT_ALLOW", "args": [], "includes": {"caps": ["CAP_SYS_ADMIN"]}},
        {"names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 8, "op": "SCMP_CMP_EQ"}]},
    ],
}


def test_the_engines_filter_is_only_ever_made_stricter() -> None:
    before = json.dumps(PROFILE)
    made = stricter(PROFILE)
    assert json.dumps(PROFILE) == before and {**made, "syscalls": []} == {**PROFILE, "syscalls": []}
    *kept, refused, clone3, clone = made["syscalls"]
    assert kept == [{**PROFILE["syscalls"][1], "names": ["read"]}, PROFILE["syscalls"][3]]  # type: ignore[index]
    assert {"ptrace", "unshare", "bpf", "keyctl", "inotify_init"} < set(refused["names"])
    assert all(set(always) <= set(refused["names"]) for _, always, _ in ARCHITECTURES.values())
    assert refused["action"] == "SCMP_ACT_ERRNO" and refused["errnoRet"] == 1
    assert (clone3["action"], clone3["errnoRet"]) == ("SCMP_ACT_ERRNO", 38)
    assert clone["action"] == "SCMP_ACT_ALLOW" and clone["args"][0]["op"] == "SCMP_CMP_MASKED_EQ"
    assert clone["args"][0]["value"] & 0x10000000  # CLONE_NEWUSER


def test_where_there_is_no_filter_to_start_from_it_is_said(tmp_path: Path) -> None:
    for text in ("no json", "[]", "{}", '{"syscalls": [{"action": 1}]}', '{"syscalls": 7}'):
        (tmp_path / "odd.json").write_text(text)
        with pytest.raises(NoFilter, match=r"odd\.json"):
            system_calls.write(str(tmp_path / "odd.json"), tmp_path / "made.json")
    for nothing, why in (("", "does not tell"), (str(tmp_path / "absent.json"), r"absent\.json: No such file")):
        with pytest.raises(NoFilter, match=why):
            system_calls.write(nothing, tmp_path / "made.json")
    assert not (tmp_path / "made.json").exists()


def test_what_an_engine_refuses_it_is_not_asked_for_again() -> None:
    wishes = Wishes(filter="/run/air/seccomp.json")
    assert wishes.less("opening seccomp profile failed: no such file") == Wishes()
    assert wishes.less("NanoCPUs: no CPU controller") == replace(wishes, fair_cpu=False)
    assert Wishes(fair_cpu=False).less("no cpu controller") == Wishes(fair_cpu=False)
    assert wishes.less("no such image") == wishes and Wishes().less("seccomp") == Wishes()
    body = create_body(Image(), "mark", {}, True, wishes)
    assert body["HostConfig"]["SecurityOpt"] == ["no-new-privileges", "seccomp=/run/air/seccomp.json"]


# --- with an engine ----------------------------------------------------------------------------------------------

ASK = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
for name, number, *args in CALLS:
    made = libc.syscall(number, *args)
    print(name, "refused" if made < 0 and ctypes.get_errno() in (errno.EPERM, errno.ENOSYS) else "passed", flush=True)
try:
    open("/proc/1/mem", "rb")
    print("memory of the first open")
except PermissionError:
    print("memory of the first closed")
"""
ASKED = {
    "unshare": (0x10000000,),
    "ptrace": (0, 0, 0, 0),
    "process_vm_readv": (-1, 0, 0, 0, 0, 0),
    "process_vm_writev": (-1, 0, 0, 0, 0, 0),
    "add_key": (0, 0, 0, 0, 0),
    "keyctl": (0, -3, 1),
    "request_key": (0, 0, 0, 0),
    "inotify_init1": (0,),
}


def questions() -> bytes:
    _, numbers, (clone, _, _) = ARCHITECTURES[platform.machine()]
    calls = [("clone", clone, 0x10000000 | 17, 0, 0, 0, 0), *((name, numbers[name], *a) for name, a in ASKED.items())]
    return f"CALLS = {calls}\n{ASK}".encode()


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ARCHITECTURES, reason="no numbers of calls are known here")
def test_no_namespace_no_key_and_no_others_memory_is_to_be_had(container_image: str) -> None:
    async def work() -> None:
        backend = Container()
        try:
            sandbox = await backend.start(Image(container=container_image, files=(("ask.py", questions(), 0o644),)))
            told = dict(line.rsplit(" ", 1) for line in (await sandbox.run("python3 ask.py", 60)).output.splitlines())
            assert told.pop("memory of the first") == "closed"
            left = await sandbox.run("ls -A /run /tmp /var/tmp | grep -cx sh", 60)
            assert left.output == "0\n"
            if "weaker" in backend.protections()["system calls"]:
                pytest.skip("the engine's own filter lies where it cannot be read")
            assert told == dict.fromkeys(("clone", *ASKED), "refused")
        finally:
            await backend.close()

    asyncio.run(asyncio.wait_for(work(), 120))


@pytest.mark.long
def test_an_engine_that_cannot_read_the_filter_keeps_its_own_however_many_start_at_once(
    container_image: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that is on another machine, or another user's."""

    async def work() -> None:
        backend = Container()
        try:
            engine = await backend._ready(container_image)
            if not engine.podman:
                pytest.skip("Docker has its filter built in")
            backend.wishes = replace(backend.wishes, filter=str(tmp_path / "elsewhere" / "seccomp.json"))
            caplog.clear()
            sandboxes = await asyncio.gather(*(backend.start(Image(container=container_image)) for _ in range(3)))
            told = await asyncio.gather(*(sandbox.run("echo works", 60) for sandbox in sandboxes))
            assert [result.output for result in told] == ["works\n"] * 3
            assert backend.protections()["system calls"].startswith("weaker")
            said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
            assert len(said) == 1 and "keep the engine's own filter" in said[0], said
        finally:
            await backend.close()

    asyncio.run(asyncio.wait_for(work(), 120))
