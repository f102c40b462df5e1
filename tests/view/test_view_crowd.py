"""Many connections and few good intentions: half-sent requests, answers that nobody takes, callers that go away.

All on loopback; every socket has a deadline."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.made_runs import episode, save, start_run
from support.viewer_client import ask

from airloop.serve import connections as server_connections
from airloop_view.server import Options, Viewer, serving

CROWD = 300
HALF = b"GET /api/about HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
SOON_S = 8.0  # less than a socket waits, more than a busy machine makes of milliseconds


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(
        server_connections, "rate_limited_log", server_connections.RateLimitedLog()
    )  # each test's own minute


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    save(start_run(tmp_path / "runs") / "trajectories" / "step_0000", episode("a_0-0"))
    return tmp_path / "runs"


def connect(port: int, said: bytes, source: str = "127.0.0.1") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(source, 0))
    with contextlib.suppress(OSError):  # it may have been hung up on already
        made.sendall(said)
    return made


@contextlib.contextmanager
def crowd(port: int, count: int = CROWD, said: bytes = HALF) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as held:
        yield [held.enter_context(connect(port, said)) for _ in range(count)]


def ended(one: socket.socket) -> bool:
    """Whether the other side has hung up."""
    try:
        return one.recv(1) == b""
    except ConnectionError:
        return True


def connections(viewer: Viewer) -> int:
    assert viewer._server is not None
    return len(viewer._server.server_state.connections)


def until(true: object, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not (found := true()) and time.monotonic() < deadline:  # type: ignore[operator]
        time.sleep(0.05)
    return bool(found)


def answered_within(viewer_port: int, seconds: float) -> bool:
    began = time.monotonic()
    with connect(viewer_port, b"GET /api/about HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n") as asking:
        return asking.recv(12) == b"HTTP/1.1 200" and time.monotonic() - began < seconds


def test_G16_half_sent_requests_keep_nobody_out(runs: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(Options(runs)) as viewer, crowd(viewer.port):
        assert answered_within(viewer.port, SOON_S)
        assert connections(viewer) <= server_connections.most_connections() // 2 + 1  # all are of one address
        for _ in range(20):
            assert ask(viewer, "/api/runs").status == 200
    assert len([r for r in caplog.records if "Too many connections" in r.message]) == 1
    assert len(caplog.text) < 2_000


def test_a_request_that_does_not_come_in_time_is_hung_up_on(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_connections, "TIMEOUT_S", 0.5)
    with serving(Options(runs)) as viewer:
        kept = connect(viewer.port, b"GET /api/about HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert kept.recv(12) == b"HTTP/1.1 200"
        kept.sendall(HALF)  # a second one, on a connection that had a whole one
        dripping = connect(viewer.port, HALF)
        with kept, dripping, crowd(viewer.port, 20) as held:
            began = time.monotonic()
            with contextlib.suppress(OSError):
                while time.monotonic() - began < 5:  # a sign now and then does not buy time
                    dripping.sendall(b"x")
                    time.sleep(0.05)
            assert time.monotonic() - began < 3
            assert until(lambda: connections(viewer) == 0) and all(map(ended, held))


def test_with_few_files_to_open_it_still_answers_and_the_log_stays_small(runs: Path, tmp_path: Path) -> None:
    """As a process: 256 is what some systems give one. 63 MB of tracebacks were written, and nobody was answered."""
    script = (
        "import resource, sys\nfrom pathlib import Path\nfrom airloop_view.server import Options, Viewer\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n"
        "viewer = Viewer(Options(Path(sys.argv[1])))\nprint(viewer.port, flush=True)\nviewer.run()\n"
    )
    log = tmp_path / "log"
    with log.open("wb") as errors:
        started = subprocess.Popen([sys.executable, "-c", script, str(runs)], stdout=subprocess.PIPE, stderr=errors)
    try:
        assert started.stdout is not None
        port = int(started.stdout.readline())
        assert until(lambda: answered_within(port, 10.0), 20)
        with crowd(port):
            assert answered_within(port, SOON_S)
            time.sleep(1.0)
            assert answered_within(port, SOON_S)
        with crowd(port, said=HALF + b"\r\n\r\n") as gone:
            for one in gone:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with crowd(port, 50, b"\x16\x03\x01 no HTTP at all\r\n\r\n"):
            assert answered_within(port, SOON_S)
    finally:
        started.terminate()
        started.communicate(timeout=20)
    said = log.read_text()
    assert "Traceback" not in said and len(said) < 2_000, said[:4_000]


def test_callers_that_go_away_leave_no_traceback(runs: Path, caplog: pytest.LogCaptureFixture) -> None:
    asked = b"GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with serving(Options(runs)) as viewer:
        logging.getLogger("uvicorn.error").addHandler(caplog.handler)  # which it does not pass on
        for path in (b"/plotly.js", b"/api/events", b"/api/runs", b"/api/raw?run=x&id=y"):
            with crowd(viewer.port, 20, asked % path) as held:
                for one in held:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert until(lambda: connections(viewer) == 0)
        assert ask(viewer, "/api/about").status == 200
    logging.getLogger("uvicorn.error").removeHandler(caplog.handler)
    assert "Traceback" not in caplog.text and len(caplog.text) < 2_000


def test_an_answer_that_nobody_takes_ends_and_a_slow_one_does_not(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is unsent keeps its size while the answer is read slowly: the server reads on in the file as there is room,
    so such a client had been dropped half-way. (With small buffers of the system, which would hold all of it.)"""
    monkeypatch.setattr(server_connections, "TIMEOUT_S", 1.0)
    asked = b"GET /plotly.js HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    with serving(Options(runs)) as viewer:
        size = int(ask(viewer, "/plotly.js", "HEAD").headers["content-length"])
        with connect(viewer.port, asked):
            assert until(lambda: connections(viewer) == 1) and until(lambda: connections(viewer) == 0)
        began, got = time.monotonic(), 0
        viewer._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)  # of connections from now on
        with socket.socket() as slow:
            slow.settimeout(10)
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            slow.connect(("127.0.0.1", viewer.port))
            slow.sendall(asked)
            while piece := slow.recv(1 << 16):
                got += len(piece)
                time.sleep(0.06)
        assert got > size and time.monotonic() - began > 2 * server_connections.TIMEOUT_S


def test_one_address_cannot_take_all_connections(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight pages that are open and stay open: nobody of them can be asked to leave."""
    monkeypatch.setattr(server_connections, "most_connections", lambda: 16)
    stream = b"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with serving(Options(runs)) as viewer, crowd(viewer.port, 8, stream) as pages:
        assert all(page.recv(12) == b"HTTP/1.1 200" for page in pages)
        with connect(viewer.port, stream) as refused:
            assert refused.recv(12) == b"HTTP/1.1 503"
        if sys.platform != "linux":  # where all of 127.0.0.0/8 is this machine
            return
        with connect(viewer.port, stream, source="127.0.0.2") as other:
            assert other.recv(12) == b"HTTP/1.1 200"


def test_a_sentence_is_said_once_a_minute(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    now = 1000.0
    monkeypatch.setattr(server_connections.time, "monotonic", lambda: now)
    quiet, log = server_connections.RateLimitedLog(), logging.getLogger("tests.once_a_minute")
    log.addFilter(quiet)
    for _ in range(5):
        try:
            raise OSError(24, os.strerror(24))
        except OSError:
            log.exception("socket.accept() out of system resource\nsocket: <%s>", now)
    assert len(caplog.records) == 1 and "Traceback" not in caplog.text and "open files" in caplog.text
    now += 61
    log.warning("another")
    try:
        raise ValueError("ours")
    except ValueError:
        log.exception("a fault of ours")
    assert len(caplog.records) == 3 and "Traceback" in caplog.text
