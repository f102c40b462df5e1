"""Which vLLM serves: another minor version is told, different ones are not mixed, a development build is taken."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.vllm_served import make_policy
from support.vllm_standin import stand_in

from airloop.config import load_config
from airloop.doctor.base import Finding
from airloop.doctor.case import Case
from airloop.doctor.checks import servers as checks
from airloop.doctor.checks.servers import vllm_is_the_pinned_one
from airloop.engine.base import EngineFailed, Sampling
from airloop.engine.vllm import engine as engines
from airloop.engine.vllm.adapters import AdapterStore
from airloop.engine.vllm.engine import VllmEngine
from airloop.engine.vllm.version import INSTALL, MINOR, caution, installed, release, skew


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("0.32.0", "0.32.0"),
        ("0.32.1+cpu", "0.32.1"),
        ("v0.31.2", "0.31.2"),
        ("0.32.0rc1", "0.32.0rc1"),
        ("0.32.1.post1+cu129", "0.32.1.post1"),
        ("0.1.dev1+g12ab34c", ""),
        ("0.32.1.dev17+gabcdef", ""),
        ("dev", ""),
        ("", ""),
        ("unknown", ""),
    ],
)
def test_what_is_released_has_a_number_that_counts(version: str, known: str) -> None:
    assert release(version) == known


def test_another_minor_version_is_told_and_different_ones_are_refused() -> None:
    assert not caution({"a": "0.32.7", "b": "0.33.0.dev1", "c": ""}) and not skew({"a": "0.32.1", "b": "dev", "c": ""})
    assert "0.31.0 (a)" in caution({"a": "0.31.0+cu129", "b": "0.32.0"}) and MINOR in caution({"a": "1.32.0"})
    assert "a is 0.32.0, c is 0.33.1" in skew({"a": "0.32.0", "b": "", "c": "0.33.1+cpu"})
    assert not skew({"a": "0.32.0+cpu", "b": "0.32.0+cu129"}) and not skew({"a": "0.32.0", "b": "0.32.1"})


def start(folder: Path, versions: Sequence[str]) -> tuple[list[str], list[str]]:
    """What the engine says when servers of these versions are started, and which of them serve."""

    async def whole() -> tuple[list[str], list[str]]:
        said: list[str] = []
        servers = [stand_in(env={"STANDIN_VERSION": version}) for version in versions]
        engine = VllmEngine(make_policy(), servers, AdapterStore(folder, "tiny"), 64, 8)
        engine.say = said.append
        try:
            await engine.start()
            await engine.generate([1, 2, 3], Sampling(1))
            return said, [server.version for server in servers if not server.lost]
        finally:
            await engine.close()

    return asyncio.run(asyncio.wait_for(whole(), 120))


@pytest.mark.slow
def test_the_run_is_told_which_version_to_install(tmp_path: Path) -> None:
    said, serving = start(tmp_path, ["0.31.4"])
    assert serving == ["0.31.4"] and len(said) == 1
    assert said[0].startswith("warning: vLLM 0.31.4 (http://") and INSTALL in said[0]


@pytest.mark.slow
def test_development_builds_and_servers_that_do_not_say_pass(tmp_path: Path) -> None:
    versions = ["0.33.1.dev3+g0123456", ""]
    assert start(tmp_path, versions) == ([], versions)


@pytest.mark.slow
def test_servers_of_different_versions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        EngineFailed, match=r"different versions of vLLM .*(0\.32\.0.*0\.33\.1|0\.33\.1.*0\.32\.0)"
    ) as told:
        start(tmp_path, ["0.32.0", "0.33.1"])
    assert INSTALL in told.value.fix


@pytest.mark.slow
def test_one_that_comes_back_as_another_version_gets_no_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node was updated while the run went on with the others."""
    monkeypatch.setattr(engines, "WATCH_S", 0.1)

    async def whole() -> None:
        servers = [stand_in(), stand_in()]
        engine = VllmEngine(make_policy(), servers, AdapterStore(tmp_path, "tiny"), 64, 8)
        try:
            await engine.start()
            servers[0].env = {"STANDIN_VERSION": "0.33.0"}
            await servers[0].end()
            while "different versions" not in servers[0].lost:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            assert not servers[1].lost and (await engine.generate([1, 2], Sampling(2))).token_ids
        finally:
            await engine.close()

    asyncio.run(asyncio.wait_for(whole(), 120))


# --- before the run ---------------------------------------------------------------------------------------------------


def looked_at(*words: str) -> Finding:
    config = load_config(["arith", "--inference.backend", "vllm", "--trainer.model.train", "lora", *words])
    with Case(config) as case:
        found = vllm_is_the_pinned_one(case)
    assert isinstance(found, Finding)
    return found


def environment(folder: Path, version: str) -> str:
    """An interpreter with vLLM beside it, as pip leaves it; it is a file that cannot be run."""
    facts = folder / "lib/python3.12/site-packages/vllm-x.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    (folder / "bin").mkdir()
    (folder / "bin/python").touch()
    return str(folder / "bin/python")


def test_what_is_installed_is_seen_without_running_anything(tmp_path: Path) -> None:
    other = looked_at("--inference.vllm.python", environment(tmp_path / "a", "0.30.2"))
    assert other.verdict == "warn" and "0.30.2" in other.seen and INSTALL in other.fix
    right = looked_at("--inference.vllm.python", environment(tmp_path / "b", "0.32.3+cpu"))
    assert right.verdict == "pass" and "0.32.3+cpu" in right.seen
    built = looked_at("--inference.vllm.python", environment(tmp_path / "c", "0.1.dev9+gabc"))
    nothing = looked_at("--inference.vllm.python", str(tmp_path / "d/bin/python"))
    assert built.verdict == nothing.verdict == "pass" and installed(str(tmp_path / "d/bin/python")) == ""


def test_servers_that_run_are_asked_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"http://a:1": "0.32.0", "http://b:2": "0.31.0", "http://c:3": ""}
    monkeypatch.setattr(checks, "_version", lambda url, key: said[url])
    urls = [f'--inference.vllm.urls=["{url}/v1"]' for url in said]
    assert [looked_at(url).verdict for url in urls] == ["pass", "warn", "pass"]
    mixed = looked_at('--inference.vllm.urls=["http://a:1", "http://b:2", "http://c:3"]')
    assert mixed.verdict == "fail" and "a:1 is 0.32.0, http://b:2 is 0.31.0" in mixed.seen


def test_a_server_that_is_not_there_yet_is_no_failure() -> None:
    assert looked_at('--inference.vllm.urls=["http://127.0.0.1:9"]').verdict == "pass"


def test_the_check_is_read_without_what_takes_seconds() -> None:
    code = "import sys, airloop.doctor.checks.servers; print({'torch', 'httpx', 'vllm'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
