"""What the container backend does beyond the contract: what it asks the engine for, and what it leaves behind."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import container_engine as engines

from airloop.errors import AirError, InfraError
from airloop.sandbox.backends import make_backend
from airloop.sandbox.base import HOME, WORKSPACE, Image, Limits, SandboxLost
from airloop.sandbox.container import request
from airloop.sandbox.container.backend import Container
from airloop.sandbox.container.docker_api import STDOUT, Engine, Refused, Stream, find_socket
from airloop.sandbox.container.leftovers import LABEL, maker_is_gone, maker_labels, reap
from airloop.sandbox.container.sandbox import ContainerSandbox, matches

PART = st.sampled_from(["a", "b.py", ".c.py", "dd"])

# --- without an engine ---------------------------------------------------------------------------------------------


def body(podman: bool = False, **image: object) -> dict[str, object]:
    return request.create_body(Image(container="some/image:1", **image), "mark", {"l": "1"}, podman)  # type: ignore[arg-type]


def test_a_container_has_no_rights_no_network_and_limits() -> None:
    limits = Limits(memory_mb=100, processes=7, open_files=8, file_mb=9, disk_mb=10, cpu_s=11, cpus=1.5, signals=12)
    asked = body(limits=limits, env=(("A", "b"),))
    host = asked["HostConfig"]
    assert isinstance(host, dict)
    assert asked["User"] == "1000:1000" and asked["NetworkDisabled"] is True and "A=b" in asked["Env"]  # type: ignore[operator]
    assert not any(str(setting).startswith("PATH=") for setting in asked["Env"])  # type: ignore[attr-defined]
    assert host["NetworkMode"] == "none" and host["CapDrop"] == ["ALL"] and host["ReadonlyRootfs"] is True
    assert host["SecurityOpt"] == ["no-new-privileges"] and host["LogConfig"] == {"Type": "none"}
    assert host["Memory"] == host["MemorySwap"] == 100 << 20 and host["PidsLimit"] == 7
    values = {one["Name"]: (one["Soft"], one["Hard"]) for one in host["Ulimits"]}
    assert values == {
        "nofile": (8, 8),
        "fsize": (9 << 20, 9 << 20),
        "cpu": (11, 11),
        "core": (0, 0),
        "sigpending": (12, 12),
        "msgqueue": (0, 0),
    }
    assert host["CpuQuota"] == 150_000 and host["CpuPeriod"] == 100_000 and host["CpuShares"] == 1024
    assert f"size={10 << 20}" in host["Tmpfs"][HOME] and "DeviceRequests" in host and host["DeviceRequests"] == []


def test_gpus_are_asked_for_as_each_engine_understands_it() -> None:
    docker, podman = body(gpus=("7", "GPU-abc")), body(podman=True, gpus=("7",))
    assert docker["HostConfig"]["DeviceRequests"] == [  # type: ignore[index]
        {"Driver": "", "Count": 0, "DeviceIDs": ["7", "GPU-abc"], "Capabilities": [["gpu"]], "Options": {}}
    ]
    assert podman["HostConfig"]["DeviceRequests"] == [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=7"]}]  # type: ignore[index]


def test_podman_is_told_how_many_processes_a_user_may_have() -> None:
    assert "nproc" in {one["Name"] for one in body(podman=True)["HostConfig"]["Ulimits"]}  # type: ignore[index]


def test_a_bind_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AirError, match="does not exist"):
        body(binds=((str(tmp_path / "absent"), "/data"),))
    mounts = body(binds=((str(tmp_path), "/data"),))["HostConfig"]["Mounts"]  # type: ignore[index]
    assert mounts == [{"Type": "bind", "Source": str(tmp_path), "Target": "/data", "ReadOnly": True}]


def test_only_containers_whose_maker_is_gone_are_left_over() -> None:
    own = maker_labels()
    assert not maker_is_gone(own, own)
    assert maker_is_gone({**own, f"{LABEL}.started": "1.0"}, own)  # the number has been given to another process
    assert maker_is_gone({**own, f"{LABEL}.pid": str(2**22 + 1)}, own)
    assert maker_is_gone({**own, f"{LABEL}.boot": "before"}, own)
    for elsewhere in ("host", "pids"):
        assert not maker_is_gone({**own, f"{LABEL}.pid": "999999999", f"{LABEL}.{elsewhere}": "other"}, own)
    assert not maker_is_gone({}, own)


def test_an_engine_that_is_not_there_is_an_error_with_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/absent.sock")
    with pytest.raises(AirError, match=r"(?s)absent\.sock.*fix: .*podman"):
        Container()
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:2375")
    with pytest.raises(AirError, match="unix sockets"):
        find_socket()


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=6), st.integers(0, 30))
def test_frames_are_read_whole_however_they_come(frames: list[tuple[int, bytes]], lost: int) -> None:
    sent = b"".join(struct.pack(">B3xI", kind, len(data)) + data for kind, data in frames)

    async def read(sent: bytes) -> list[tuple[int, bytes]]:
        reader = asyncio.StreamReader()
        for byte in sent:
            reader.feed_data(bytes([byte]))
        reader.feed_eof()
        stream = Stream(reader, None)  # type: ignore[arg-type]
        found = []
        while (frame := await stream.frame()) is not None:
            found.append(frame)
        return found

    assert asyncio.run(read(sent)) == frames
    cut = asyncio.run(read(sent[: len(sent) - lost])) if lost and sent else frames
    assert cut == frames[: len(cut)]


@given(
    st.sets(st.lists(PART, min_size=1, max_size=3).map(tuple), max_size=8),
    st.lists(st.sampled_from(["**", "*", "*.py", "a"]), max_size=3),
)
def test_patterns_mean_what_pathlib_means(names: set[tuple[str, ...]], folders: list[str]) -> None:
    pattern = [*folders, "*.py"]
    files = {name for name in names if not any(name == other[: len(name)] for other in names - {name})}
    found = {name for name in files if matches(name, tuple(pattern))}
    with tempfile.TemporaryDirectory() as root:
        for name in files:
            Path(root, *name).parent.mkdir(parents=True, exist_ok=True)
            Path(root, *name).touch()
        expected = {p.relative_to(root).parts for p in Path(root).glob("/".join(pattern)) if p.is_file()}
    assert found == expected


@pytest.mark.skipif(sys.platform != "linux", reason="the programs are an image's")
def test_paths_that_no_call_takes_are_left_out_of_a_tar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without being spelled out: of directories that are thousands deep the names alone are gigabytes."""
    inside = str(tmp_path).lstrip("/")
    monkeypatch.chdir(tmp_path)
    while len(inside) < request.PATH_MAX - 240:  # a name has 255 bytes at most
        inside += "/" + 200 * "d"
        os.mkdir(200 * "d")
        os.chdir(200 * "d")
    longest = (request.PATH_MAX - 2 - len(inside)) * "f"
    for name in (longest, longest + "e", longest + "é"):
        Path(name).touch()
    for _ in range(20):
        os.mkdir(200 * "d")
        os.chdir(200 * "d")
    os.chdir("/")
    script = request.pack(str(tmp_path), ())
    found = subprocess.run(["bash", "-c", script.partition(" | tar ")[0]], stdout=subprocess.PIPE, check=True).stdout
    assert max(map(len, found.split(b"\0"))) == request.PATH_MAX - 1
    packed = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert [member.name for member in tar if member.isfile()] == [f"{inside}/{longest}"]


# --- with one ----------------------------------------------------------------------------------------------------

slow = pytest.mark.slow
Work = Callable[[Container], Awaitable[None]]


@pytest.fixture
def play(container_image: str) -> Callable[[Work], None]:
    def run(work: Work) -> None:
        async def whole() -> None:
            backend = Container()
            try:
                await asyncio.wait_for(work(backend), 90)
            finally:
                await backend.close()

        asyncio.run(whole())

    return run


async def sandbox_of(backend: Container, image: Image) -> ContainerSandbox:
    sandbox = await backend.start(image)
    assert isinstance(sandbox, ContainerSandbox)
    return sandbox


async def ours(engine: Engine, maker: int | None = None) -> list[str]:
    """Those that a process has made, by default this one: other tests use the same engine at the same time."""
    filters = f'{{"label": ["{LABEL}=world", "{LABEL}.pid={maker or os.getpid()}"]}}'
    found = await engine.ask("GET", "/containers/json", all="true", filters=filters)
    return [one["Id"] for one in found]


@pytest.mark.long
@slow
def test_an_image_that_cannot_be_had_names_the_command(play: Callable[[Work], None]) -> None:
    async def work(backend: Container) -> None:
        with pytest.raises(AirError, match=r"(?s)localhost/air-tests-absent.*fix: .*pull localhost/air-tests-absent"):
            await backend.start(Image(container="localhost/air-tests-absent:1"))
        with pytest.raises(AirError, match="name of an image"):
            await backend.start(Image())

    play(work)


@slow
def test_hosts_to_reach_are_refused(play: Callable[[Work], None], container_image: str) -> None:
    async def work(backend: Container) -> None:
        with pytest.raises(AirError, match="no network"):
            await backend.start(Image(container=container_image, network=("example.org",)))

    play(work)


@slow
def test_an_image_without_bash_is_named(play: Callable[[Work], None], container_engine: str) -> None:
    name = engines.import_image(container_engine, "air-tests-bare", *engines.image_files(["sh", "tar"], python=False))
    empty = engines.import_image(container_engine, "air-tests-empty", [], [])

    async def work(backend: Container) -> None:
        with pytest.raises(AirError, match="it has no bash"):
            await backend.start(Image(container=name))
        with pytest.raises(AirError, match="no /bin/sh"):
            await backend.start(Image(container=empty))
        assert backend.engine is not None and await ours(backend.engine) == []

    play(work)


@slow
def test_what_a_killed_run_left_is_removed_by_the_next(play: Callable[[Work], None], container_image: str) -> None:
    maker = (
        "import asyncio\nfrom airloop.sandbox.base import Image\n"
        "from airloop.sandbox.container.backend import Container\n"
        "async def main():\n"
        f"    sandbox = await Container().start(Image(container={container_image!r}))\n"
        "    print(sandbox.id, flush=True)\n    await asyncio.sleep(60)\nasyncio.run(main())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", maker], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    left = process.stdout.readline().strip()

    async def while_it_lives(backend: Container) -> None:
        sandbox = await sandbox_of(backend, Image(container=container_image))
        assert await ours(sandbox.engine, process.pid) == [left]  # another run's sandbox is not touched

    async def afterwards(backend: Container) -> None:
        sandbox = await sandbox_of(backend, Image(container=container_image))
        assert await ours(sandbox.engine) == [sandbox.id] and not await ours(sandbox.engine, process.pid)
        assert await reap(sandbox.engine) == 0

    try:
        assert left
        play(while_it_lives)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    play(afterwards)


@slow
def test_who_ended_a_sandbox(play: Callable[[Work], None], container_image: str) -> None:
    async def work(backend: Container) -> None:
        killed = await sandbox_of(backend, Image(container=container_image))
        running = asyncio.create_task(killed.run("sleep 30", 60))
        await asyncio.sleep(0.3)
        await killed.engine.ask("POST", f"/containers/{killed.id}/kill", signal="SIGKILL")
        with pytest.raises(InfraError, match="from outside"):
            await running
        assert not killed.alive
        with pytest.raises(InfraError):
            await killed.get("f")

        removed = await sandbox_of(backend, Image(container=container_image))
        await removed.engine.ask("DELETE", f"/containers/{removed.id}", force="true")
        with pytest.raises(InfraError):
            await removed.run("true", 5)
        await removed.close()

        # What sends signals is dead, the shell is deaf and the sandbox is full: it is replaced, or the agent's loss.
        deaf = await sandbox_of(backend, Image(container=container_image, limits=Limits(processes=20)))
        try:
            result = await deaf.run(
                "trap '' INT; kill -9 -1; for i in {1..18}; do sleep 60 & done; while :; do :; done", 1
            )
            assert result.timed_out and result.shell_restarted
        except SandboxLost:
            assert not deaf.alive

    play(work)


@slow
def test_a_sandbox_full_of_processes_still_gives_its_files(play: Callable[[Work], None], container_image: str) -> None:
    async def work(backend: Container) -> None:
        sandbox = await sandbox_of(backend, Image(container=container_image, limits=Limits(processes=20)))
        await sandbox.run("echo answer > f; for i in {1..15}; do sleep 60 & done", 10)
        await sandbox.run("sleep 60 & sleep 60 & sleep 60 & sleep 60 & sleep 60", 1)
        assert await sandbox.get("f") == b"answer\n"

    play(work)


@pytest.mark.long
@slow
def test_a_directory_of_the_images_own_in_the_place_of_home(
    play: Callable[[Work], None], container_engine: str
) -> None:
    """Some engines give a file system in memory the mode of what was there: the agent may write all the same."""
    files, links = engines.image_files()
    name = engines.import_image(container_engine, "air-tests-home", files, {*links, (f"{WORKSPACE}/old", "nowhere")})

    async def work(backend: Container) -> None:
        sandbox = await sandbox_of(backend, Image(container=name, files=(("f", b"1", 0o644),)))
        told = await sandbox.run("touch new ~/new /tmp/new && ls; pwd", 10)
        assert told.output == f"f\nnew\n{WORKSPACE}\n"

    play(work)


@slow
def test_closing_is_quick_and_leaves_nothing(play: Callable[[Work], None], container_image: str) -> None:
    async def work(backend: Container) -> None:
        sandbox = await sandbox_of(backend, Image(container=container_image))
        engine = sandbox.engine
        await sandbox.run("trap '' TERM INT HUP; sleep 100 &", 5)
        started = time.monotonic()
        await sandbox.close()
        assert time.monotonic() - started < 9 and await ours(engine) == []
        left = await sandbox_of(backend, Image(container=container_image))
        backend.abandon()
        assert await ours(engine) == [] and not left.alive
        assert "network" in backend.protections()

    play(work)


@slow
def test_a_command_with_a_lot_of_input_and_output(play: Callable[[Work], None], container_image: str) -> None:
    async def work(backend: Container) -> None:
        sandbox = await sandbox_of(backend, Image(container=container_image))
        content = bytes(range(256)) * 80_000
        echo = ["sh", "-c", f"head -c {len(content)}; echo oops >&2; exit 5"]
        done = await sandbox.engine.execute(sandbox.id, echo, request.USER, content, limit=len(content))
        assert (done.code, done.stdout == content, done.stderr, done.cut) == (5, True, "oops", False)
        done = await sandbox.engine.execute(sandbox.id, ["sh", "-c", "yes"], request.USER, limit=1000)
        assert done.cut and len(done.stdout) == 1000
        with pytest.raises(Refused):
            await sandbox.engine.execute("no-such-container", ["true"], request.USER)
        _, stream = await sandbox.engine.start_exec(sandbox.id, ["sh", "-c", "echo one"], request.USER)
        assert await stream.frame() == (STDOUT, b"one\n")
        stream.close()

    play(work)


def runtime_tried(play: Callable[[Work], None], image: str, name: str) -> str:
    """What a container that is asked for with this runtime says of itself, or why there is none."""
    said: list[str] = []

    async def work(_: Container) -> None:
        backend = Container(name)
        try:
            sandbox = await backend.start(Image(container=image))
            said.append((await sandbox.run("uname -v; dmesg 2>/dev/null | head -1", 20)).output)
        except (AirError, InfraError) as error:
            said.append(str(error))
        finally:
            await backend.close()

    play(work)
    return said[0]


def test_a_runtime_that_the_engine_does_not_take_is_never_passed_over(
    play: Callable[[Work], None], container_image: str
) -> None:
    said = runtime_tried(play, container_image, "no-such-runtime")
    assert "no-such-runtime" in said  # by the engine, or by us where it says nothing


def test_the_runtime_that_the_engine_has_is_taken_by_name(play: Callable[[Work], None], container_image: str) -> None:
    if shutil.which("runc") is None:
        pytest.skip("the engine of the tests has runc")
    assert "#" in runtime_tried(play, container_image, "runc")


def test_a_runtime_is_for_containers_and_a_strict_filter_for_bubblewrap() -> None:
    with pytest.raises(AirError, match="is for containers"):
        make_backend("bubblewrap", runtime="runsc")
    with pytest.raises(AirError, match="none of its own"):
        make_backend("container", syscalls="strict")
