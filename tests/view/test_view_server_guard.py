"""Who may ask the viewer, and what no question can reach."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.made_runs import episode, save, start_run
from support.viewer_client import ask, rows

from airloop_view.server import Options, Viewer, serving

NAME = "exp1.0-arith-1115"


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIR_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    root = tmp_path_factory.mktemp("guarded")
    save(start_run(root, NAME) / "trajectories" / "step_0000", episode("a_0-0"))
    with serving(Options(root)) as viewer:
        yield viewer


def test_only_reading(viewer: Viewer) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert ask(viewer, "/api/about", method).status == 405
    assert ask(viewer, "/api/about", "HEAD").body == b""


def test_only_under_our_own_name(viewer: Viewer) -> None:
    for name in ("evil.example", f"evil.example:{viewer.port}", "localhost.evil.example", "", "127.0.0.1.evil.example"):
        assert ask(viewer, "/api/runs", headers={"Host": name}).status == 421, name
    for name in ("localhost", f"127.0.0.1:{viewer.port}", "[::1]:80", "LOCALHOST:9"):
        assert ask(viewer, "/api/runs", headers={"Host": name}).status == 200, name
    assert ask(viewer, "/api/runs", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}).status == 403


def test_a_key_in_an_older_runs_files_is_on_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in pieces either: what is said is coloured, and tokens are shown one by one."""
    run, said = start_run(tmp_path, NAME), "curl -H 'Key: sk-planted-0123' && echo done"
    save(run / "trajectories" / "step_0000", episode("a_0-0", [said], prompt=said, error=f"401 {said}"))
    monkeypatch.setenv("JUDGE_API_KEY", "sk-planted-0123")
    with serving(Options(tmp_path)) as viewer:
        asked = [("/api/trajectory", {}), ("/api/raw", {}), ("/export", {}), ("/api/text", {"part": "raw"})]
        for path, values in asked:
            page = ask(viewer, path, run=NAME, id="a_0-0", **values)
            assert page.status == 200 and b"planted" not in page.body and "…" in page.body.decode(), path
        rows_of = ask(viewer, "/api/trajectories", run=NAME, q="planted").body
        tokens = ask(viewer, "/api/tokens", run=NAME, id="a_0-0").json["tokens"]
    assert b"sk-planted-0123" not in rows_of and "sk-planted-0123" not in "".join(token["t"] for token in tokens)


def test_a_path_never_leads_out(viewer: Viewer) -> None:
    for path in ("/static/../server.py", "/static/%2e%2e/server.py", "/static//etc/passwd", "/static/..%2f..%2fcli.py"):
        assert ask(viewer, path).status in (400, 404), path
    for run in ("..", "../..", "/etc", f"{NAME}/../..", f"{NAME}/trajectories", "\x00"):
        assert ask(viewer, "/api/run", run=run).status == 404, run
    for id in ("../../status", "/etc/passwd", "..", "\x00"):
        assert ask(viewer, "/api/trajectory", run=NAME, id=id).status == 404, id
    assert ask(viewer, "/api/text", run=NAME, id=rows(viewer, run=NAME)[0]["id"], part="../x").status == 404


def test_links_out_of_the_directory_show_nothing(tmp_path: Path) -> None:
    secret = tmp_path / "secret.toml"
    secret.write_text('password = "hunter2"\n')
    run = start_run(tmp_path / "runs")
    path = save(run / "trajectories" / "step_0000", episode("a_0-0"))
    (run / "config.toml").unlink()
    (run / "config.toml").symlink_to(secret)
    with serving(Options(tmp_path / "runs")) as viewer:
        for answer in (ask(viewer, "/api/runs"), ask(viewer, "/api/run", run=run.name)):
            assert b"hunter2" not in answer.body
        assert rows(viewer)[0]["id"] == "a_0-0"
        path.unlink()
        path.symlink_to(secret)  # changed after it was indexed
        for name in ("/api/trajectory", "/api/raw", "/export", "/api/tokens"):
            answer = ask(viewer, name, run=run.name, id="a_0-0")
            assert answer.status == 404 and b"hunter2" not in answer.body, name


def test_beyond_this_machine_only_with_the_token(tmp_path: Path) -> None:
    start_run(tmp_path)
    with serving(Options(tmp_path, host="0.0.0.0")) as viewer:
        assert viewer.token and len(viewer.token) >= 24 and viewer.url.endswith(f"?token={viewer.token}")
        name = f"{socket.gethostname()}:{viewer.port}"
        assert viewer.url_elsewhere == f"http://{name}/?token={viewer.token}"
        assert ask(viewer, "/api/runs", headers={"Host": name}).status == 401  # a name of ours, but no token
        assert ask(viewer, "/api/runs").status == 401 and ask(viewer, "/").status == 401
        assert ask(viewer, "/api/runs", token="x" * 32).status == 401
        assert ask(viewer, "/api/runs", headers={"Cookie": f"air_view_{viewer.port}=wrong"}).status == 401
        entered = ask(viewer, "/", token=viewer.token, more="1")
        assert entered.status == 303 and entered.headers["location"] == "/?more=1"
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Lax" in cookie
        assert ask(viewer, "/api/runs", headers={"Cookie": cookie.partition(";")[0]}).status == 200
        assert ask(viewer, "/api/runs", headers={"Authorization": f"Bearer {viewer.token}"}).status == 200
        assert (
            ask(viewer, "/api/runs", headers={"Host": "evil.example", "Cookie": cookie.partition(";")[0]}).status == 421
        )
        escaped = ask(viewer, "//evil.example/", token=viewer.token)
        assert re.match(r"/[^/]|/$", escaped.headers.get("location", "/"))


def test_a_token_can_be_asked_for_anywhere(tmp_path: Path) -> None:
    start_run(tmp_path)
    with serving(Options(tmp_path, token="a token that is long")) as viewer:
        assert ask(viewer, "/api/runs").status == 401
        assert ask(viewer, "/api/runs", token="a token that is long").status == 303


def test_a_token_of_any_signs_beside_anybodys_cookies(tmp_path: Path) -> None:
    """What `openssl rand -base64` gives holds signs that an address and a cookie use themselves."""
    start_run(tmp_path)
    with serving(Options(tmp_path, token="ab+cd/ef=&gh;ij kl")) as viewer:
        first = ask(viewer, viewer.url.partition(str(viewer.port))[2])
        assert first.status == 303 and first.headers["location"] == "/"
        cookie = first.headers["set-cookie"].partition(";")[0]
        for cookies in (cookie, f'settings={{"a": 1, "b": [2]}}; {cookie}', f"{cookie}; =; \xe9 x"):
            assert ask(viewer, "/api/about", headers={"Cookie": cookies}).status == 200
        assert ask(viewer, "/api/about", headers={"Cookie": f"{cookie}x"}).status == 401
        turned = ask(viewer, "/%5Celsewhere/%0d%0aa:b", token="ab+cd/ef=&gh;ij kl")
        assert turned.headers["location"] == "/%5Celsewhere/%0D%0Aa%3Ab"
