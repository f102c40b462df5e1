"""Copies of agents' workspaces: whatever lies there, the copy has files and folders, and nothing else is changed."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airloop.programs import scorer
from airloop.programs.scorer import unpack
from airloop.sandbox.base import SandboxLost

ROOT = "home/agent/workspace"
PART = st.sampled_from(["a", "b", "c.txt", "..", ".", "", "ä\udcff", "x" * 200, "new\nline", "-rf", "~"])
NAMES = st.lists(PART, min_size=1, max_size=5).map("/".join)
PLACES = st.sampled_from([f"{ROOT}/", f"/{ROOT}/", "home/agent/", "/etc/", "../", ""])
KINDS = st.sampled_from(
    [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
LINKS = st.sampled_from(["/etc/passwd", "..", "../../outside", "a", f"{ROOT}/a", "/"])
MEMBERS = st.lists(st.tuples(PLACES, NAMES, KINDS, LINKS, st.binary(max_size=20)), max_size=12)


def packed(members: list[tuple[str, str, bytes, str, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:", format=tarfile.PAX_FORMAT) as tar:
        for place, name, kind, link, content in members:
            info = tarfile.TarInfo(place + name)
            info.type, info.mode = kind, 0o6777
            info.linkname = link if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            info.size = len(content) if kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


@given(MEMBERS)
def test_a_copy_has_files_and_folders_and_nothing_is_written_elsewhere(
    members: list[tuple[str, str, bytes, str, bytes]],
) -> None:
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "in" / "copy"
        folder.mkdir(parents=True)
        (Path(base) / "outside").write_text("as it was")
        with contextlib.suppress(SandboxLost):  # a file where a folder is
            unpack(packed(members), folder)
        assert sorted(os.listdir(base)) == ["in", "outside"] and os.listdir(folder.parent) == ["copy"]
        assert (Path(base) / "outside").read_text() == "as it was"
        for place, folders, files in os.walk(folder):
            for name in (*folders, *files):
                path = Path(place) / name
                assert not path.is_symlink() and (path.is_file() or path.is_dir())
                assert not path.is_file() or (path.stat().st_mode & 0o7777 == 0o600 and path.stat().st_nlink == 1)


@given(st.binary(max_size=2000))
def test_what_is_no_archive_is_the_agents_loss(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as base:
        with contextlib.suppress(SandboxLost):
            unpack(data, Path(base))
        assert not os.listdir(base)


def test_names_too_many_and_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorer, "MOST_FILES", 3)
    three = [(f"{ROOT}/", f"f{i}", tarfile.REGTYPE, "", b"1") for i in range(3)]
    unpack(packed(three), tmp_path)
    assert len(os.listdir(tmp_path)) == 3
    with pytest.raises(SandboxLost, match="more than 3 files"):
        unpack(packed([*three, (f"{ROOT}/", "g", tarfile.REGTYPE, "", b"1")]), tmp_path / "other")
    with pytest.raises(SandboxLost, match="cannot be copied"):
        unpack(packed([(f"{ROOT}/", "y" * 300, tarfile.REGTYPE, "", b"1")]), tmp_path / "long")


def test_what_a_killed_run_has_left_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    places = {name: tmp_path / f"air-workspace-{name}-x" for name in (str(ended.pid), str(os.getpid()), "other")}
    for place in places.values():
        (place / "in").mkdir(parents=True)
    scorer.reap()
    assert [name for name, place in places.items() if not place.exists()] == [str(ended.pid)]
