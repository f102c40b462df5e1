"""Attacks on the endpoint over sockets. After each of them, honest clients are answered, and no other episode was
reached."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.attacked_endpoint import BODY, LONG, PATH, Attacked, read_answers

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]
GIB = 1 << 30
CROWD = 1000
MORE_MEMORY = 200 << 20  # bytes, than before the attack


@pytest.fixture(scope="module", params=["h11", "httptools"])
def attacked(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Attacked]:
    pytest.importorskip(request.param)
    served = Attacked(tmp_path_factory.mktemp("attacked"), request.param)
    yield served
    served.close()
    log = served.log.read_text()
    assert "Traceback" not in log and len(log) < 20_000, log


@pytest.fixture(autouse=True)
def answers_honest_clients(attacked: Attacked) -> Iterator[None]:
    """Before and after each attack; nothing of it was asked in the other's episode."""
    before = attacked.counts()["two"]
    yield
    attacked.honest()
    assert attacked.counts()["two"] == before
    attacked.honest("two")


def statuses(answers: list[tuple[int, bytes]]) -> list[int]:
    return [status for status, _ in answers]


# --- keys and paths --------------------------------------------------------------------------------------------


def test_keys_of_others_open_nothing(attacked: Attacked) -> None:
    own, other = attacked.keys["one"], attacked.keys["two"]
    forged = ["", "air-", "air-forged", own[:-1], own + "x", own.lower(), f"Bearer {own}", f"{own},{own}", "x" * 50_000]
    for key in [*forged, other, "\xff\xfe", own.replace("air-", "air-\t")]:
        for episode in ("one",):
            head = attacked.head("Connection: close", episode=episode, key=key)
            assert statuses(attacked.ask(head + BODY)) == [401], key
    head = attacked.head("Connection: close", episode="two", key=own)
    assert statuses(attacked.ask(head + BODY)) == [401]
    two_keys = attacked.head("Connection: close", f"Authorization: Bearer {other}", episode="one", key=other)
    assert statuses(attacked.ask(two_keys + BODY)) == [401]


@pytest.mark.parametrize(
    "path",
    [
        "/e/one/../two" + PATH,
        "/e/one/..%2ftwo" + PATH,
        "/e/one%2f..%2ftwo" + PATH,
        "/e/%2e%2e/two" + PATH,
        "/e/one/./../two" + PATH,
        "/e//two" + PATH,
        "//e/two" + PATH,
        "/e/two/" + PATH,
        "/e/two" + PATH + "/",
        "/E/two" + PATH,
        "/e/two%00" + PATH,
        "/e/two%0d%0aX-Api-Key:%20x" + PATH,
        "/e/tw%C3%B3" + PATH,
        "/e/%ff%fe" + PATH,
        "/e/%EF%BD%94wo" + PATH,  # a wide t, which some take for a narrow one
        "/e/two;one" + PATH,
        "/e/two" + PATH + "?episode=one",
        "/e/two" + PATH + "%3fepisode=one",
        "/e/two\\..\\one" + PATH,
        "http://policy/e/two" + PATH,
        "*",
        "/e/two/v1",
        PATH,
        "/inference/v1/generate",
        "/e/one/finish",
        "/episodes/one/finish",
        "/e/" + "x" * 60_000 + PATH,
        "/e/" + "%41" * 20_000 + PATH,
    ],
)
def test_paths_lead_nowhere_else(attacked: Attacked, path: str) -> None:
    head = attacked.head("Connection: close").replace(f"/e/one{PATH}".encode(), path.encode(), 1)
    answers = attacked.ask(head + BODY)
    assert statuses(answers) in ([400], [401], [404]), answers
    assert b"Location" not in answers[0][1]


# --- size and time ---------------------------------------------------------------------------------------------


def send_until_refused(line: socket.socket, piece: bytes, most: int) -> int:
    sent = 0
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        while sent < most:
            line.sendall(piece)
            sent += len(piece)
    return sent


@pytest.mark.parametrize("key", [None, "air-forged"])
def test_a_body_of_a_gibibyte_is_refused_by_its_length(attacked: Attacked, key: str | None) -> None:
    before = attacked.memory
    with attacked.connect() as line:
        line.sendall(attacked.head(key=key, length=GIB))
        got = line.recv(1 << 16)  # before a byte of it was sent
        assert got.startswith(b"HTTP/1.1 413" if key is None else b"HTTP/1.1 401")
        assert send_until_refused(line, b" " * (1 << 20), GIB) < GIB  # and is not listened to
    assert attacked.memory < before + MORE_MEMORY


def test_a_body_of_a_gibibyte_without_a_length_is_not_held(attacked: Attacked) -> None:
    before = attacked.memory
    with attacked.connect() as line:
        line.sendall(attacked.head("Transfer-Encoding: chunked", length=None))
        assert send_until_refused(line, b"100000\r\n" + b" " * (1 << 20) + b"\r\n", GIB) < GIB
    assert attacked.memory < before + MORE_MEMORY


@pytest.mark.parametrize("piece", [b"X: " + b"y" * 1000 + b"\r\n", b"y" * 1000], ids=["trailers", "extension"])
def test_what_stands_around_a_body_is_bounded(attacked: Attacked, piece: bytes) -> None:
    """Fields behind the last chunk, or what may stand behind a chunk's length, without an end."""
    before = attacked.memory
    with attacked.connect() as line:
        line.sendall(attacked.head("Transfer-Encoding: chunked", length=None))
        line.sendall(b"0\r\n" if piece.startswith(b"X") else b"5;")
        assert send_until_refused(line, piece * 100, GIB) < 64 << 20
    assert attacked.memory < before + MORE_MEMORY


def test_who_asks_before_sending_much_is_not_told_to(attacked: Attacked) -> None:
    with attacked.connect() as line:
        line.sendall(attacked.head("Expect: 100-continue", length=GIB))
        assert line.recv(1 << 16).startswith(b"HTTP/1.1 413")


def test_many_large_bodies_at_once_are_not_all_held(attacked: Attacked) -> None:
    """Forty of fifteen mebibytes, none of which ends."""
    before = attacked.memory
    length = 15 << 20
    with contextlib.ExitStack() as lines:
        crowd = [lines.enter_context(attacked.connect()) for _ in range(40)]
        for line in crowd:
            line.sendall(attacked.head(length=length))
            send_until_refused(line, b" " * (1 << 20), length - (1 << 20))
        attacked.honest("one")
    assert attacked.memory < before + 2 * MORE_MEMORY


@pytest.mark.parametrize("in_body", [False, True])
def test_who_is_slow_on_purpose_is_hung_up_on(attacked: Attacked, in_body: bool) -> None:
    """Byte by byte, of heads and of bodies, by fifty at once."""
    with contextlib.ExitStack() as lines:
        crowd = [lines.enter_context(attacked.connect()) for _ in range(50)]
        left = set(crowd)
        for line in crowd:
            line.sendall(attacked.head(length=1000) if in_body else b"POST / HTTP/1.1\r\n")
        attacked.honest()
        for _ in range(600):
            for line in list(left):
                try:
                    line.sendall(b"x")
                except (ConnectionResetError, BrokenPipeError):
                    left.discard(line)
            if not left:
                break
            time.sleep(0.1)
        assert not left


def test_an_answer_that_nobody_takes_is_given_up(attacked: Attacked) -> None:
    """Large ones, of many requests on one line."""
    body = json.dumps({"messages": [{"role": "user", "content": LONG}], "n": 16, "logprobs": True}).encode()
    with attacked.connect() as line:
        line.sendall((attacked.head(length=len(body)) + body) * 300)
        for _ in range(600):
            try:
                line.send(b"x")
            except (ConnectionResetError, BrokenPipeError):
                return
            time.sleep(0.1)
    pytest.fail("it still waits for somebody to take its answers")


@contextlib.contextmanager
def many_files(most: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < most:
        pytest.skip(f"this process may have no more than {hard} files open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_thousand_connections_keep_nobody_out(attacked: Attacked) -> None:
    """That say nothing, or half of a head."""
    with many_files(CROWD + 500), contextlib.ExitStack() as lines:
        for i in range(CROWD):
            line = lines.enter_context(attacked.connect())
            with contextlib.suppress(OSError):
                line.sendall(b"POST /e/one HTTP/1.1\r\nHost: " if i % 2 else b"")
            if i % 100 == 0:
                attacked.honest()
        attacked.honest()


@pytest.mark.parametrize(
    "more",
    [
        [f"X-{i}: y" for i in range(5000)],
        ["X: " + "y" * (1 << 20)],
        ["X" * (1 << 20) + ": y"],
        [f"X: {i}" for i in range(50_000)],
        ["Cookie: a=b"] * 2000,
    ],
)
def test_floods_of_heads_are_refused_or_read(attacked: Attacked, more: list[str]) -> None:
    before = attacked.memory
    with attacked.connect() as line:
        send_until_refused(line, attacked.head("Connection: close", *more) + BODY, 1)
        assert statuses(read_answers(line)) in ([200], [400], [431], [])
    assert attacked.memory < before + MORE_MEMORY


@pytest.mark.parametrize("messages", [1, 150_000])
def test_a_conversation_far_beyond_the_context_holds_nobody_up(attacked: Attacked, messages: int) -> None:
    body = b'{"messages": [' + b",".join(
        [b'{"role": "user", "content": "%s"}' % (b"x " * (5_000_000 // messages))] * messages
    )
    body += b"]}"
    with attacked.connect() as line:
        line.sendall(attacked.head("Connection: close", length=len(body)) + body)
        attacked.honest()
        ((status, said),) = read_answers(line)
    assert status == 400 and b"context_length_exceeded" in said


def test_a_million_token_ids_hold_nobody_up(attacked: Attacked) -> None:
    body = json.dumps({"token_ids": [97] * 1_000_000}).encode()
    with attacked.connect() as line:
        line.sendall(attacked.head("Connection: close", length=len(body), path="/inference/v1/generate") + body)
        attacked.honest()
        ((status, said),) = read_answers(line)
    assert status == 400 and b"context_length_exceeded" in said


# --- forms of requests -----------------------------------------------------------------------------------------


def test_requests_one_behind_the_other_are_answered_in_their_order(attacked: Attacked) -> None:
    one, wrong = attacked.head() + BODY, attacked.head(key="air-forged") + BODY
    last = attacked.head("Connection: close") + BODY
    assert statuses(attacked.ask(one + one + wrong + one + last)) == [200, 200, 401, 200, 200]


@pytest.mark.long
def test_a_flood_of_requests_on_one_line_is_answered_or_ended(attacked: Attacked) -> None:
    with attacked.connect() as line:
        send_until_refused(line, (attacked.head() + BODY) * 500 + attacked.head("Connection: close") + BODY, 1)
        assert set(statuses(read_answers(line))) <= {200}


def test_half_closed_lines_leave_nothing_behind(attacked: Attacked) -> None:
    before = attacked.counts()["files"]
    for sent in (attacked.head() + BODY, attacked.head() + BODY[:5], attacked.head()[:40], b""):
        with attacked.connect() as line:
            line.sendall(sent)
            line.shutdown(socket.SHUT_WR)
            assert statuses(read_answers(line)) in ([200], [400], [])
    for _ in range(100):
        if attacked.counts()["files"] <= before:
            break
        time.sleep(0.1)
    assert attacked.counts()["files"] <= before


def smuggled(attacked: Attacked) -> bytes:
    """A request that must not be answered: it is of a body."""
    return attacked.head("Connection: close", episode="two") + BODY


@pytest.mark.parametrize(
    "form",
    [
        ["Content-Length: 5", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: 5"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: identity"],
        ["Transfer-Encoding: identity, chunked"],
        ["Transfer-Encoding: xchunked"],
        ["Transfer-Encoding: chunked, chunked"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: gzip, chunked"],
        ["Transfer-Encoding : chunked"],
        [" Transfer-Encoding: chunked"],
        ["Transfer-Encoding: \x0bchunked"],
        ["Content-Length: 5", "Content-Length: 0"],
        ["Content-Length: +5"],
        ["Content-Length: -1"],
        ["Content-Length: 5, 0"],
        ["Content-Length: 0x5"],
        ["Content-Length: 99999999999999999999999"],
        ["Content-Length:"],
        ["X: a\x00b", "Content-Length: 0"],
        ["X: a\rContent-Length: 0"],
        ["X: a\nContent-Length: 0"],
    ],
)
def test_what_a_body_hides_is_never_asked(attacked: Attacked, form: list[str]) -> None:
    """Requests whose length two readers would see differently: what stands behind the first is of another's episode."""
    head = attacked.head(*form, length=None)
    for body in (b"0\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n", b"\xff" * 5):
        with attacked.connect() as line:
            send_until_refused(line, head + body + smuggled(attacked), 1)
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_WR)
            answers = read_answers(line)
        assert all(status in (400, 401, 413, 501) for status in statuses(answers)), answers


@pytest.mark.parametrize(
    "said",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,  # TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x00" * 1000,
        b"\r\n" * 1000,
        b"GET /\r\n\r\n",
        b"CONNECT policy:80 HTTP/1.1\r\nHost: policy\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n",
        b"TRACE / HTTP/1.1\r\nHost: policy\r\n\r\n",
    ],
)
def test_what_is_no_request_of_ours_is_refused(attacked: Attacked, said: bytes) -> None:
    with attacked.connect() as line:
        line.sendall(said)
        line.shutdown(socket.SHUT_WR)
        answers: list[tuple[int, Any]] = read_answers(line)
        assert all(400 <= status < 500 for status in statuses(answers)), answers


def test_the_log_tells_of_it_once(attacked: Attacked) -> None:
    """It is somebody's disk."""
    for _ in range(200):
        attacked.ask(b"nonsense\r\n\r\n")
    assert Path(attacked.log).stat().st_size < 20_000
