"""What is written into control groups of the version that this machine may not have: directories stand for them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from airloop.sandbox.base import Limits
from airloop.sandbox.bubblewrap import cgroups

LIMITS = Limits(memory_mb=512, processes=40, cpus=1.5)
NEW = ("memory.max", "memory.swap.max", "pids.max", "cpu.weight", "cpu.max", "cgroup.freeze")
OLD = {
    "memory": ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    "pids": ("pids.max",),
    "cpuacct": (),
    "cpu": ("cpu.shares", "cpu.cfs_period_us", "cpu.cfs_quota_us"),
    "freezer": ("freezer.state",),
}


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new directory has the files of its parent, as the kernel makes them."""
    make = Path.mkdir

    def mkdir(self: Path, *args: int, **named: bool) -> None:
        make(self, *args, **named)
        for file in self.parent.glob("*.*"):
            (self / file.name).write_text("")

    monkeypatch.setattr(Path, "mkdir", mkdir)


def tree(place: Path, names: tuple[str, ...]) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    for name in names:
        (place / name).write_text("")
    return place


def written(group: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in group.iterdir() if file.read_text()}


def test_version_2_is_found_and_limits_a_sandbox_in_one_group(
    tmp_path: Path, kernel: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tree(tmp_path / "user.slice", NEW)
    (place / "cgroup.subtree_control").write_text("cpu memory pids\n")
    monkeypatch.setattr(cgroups, "_own", lambda: [("", place)])
    found = cgroups.find()
    assert found == cgroups.Groups(place, place, 2, place, place, place)
    (group,) = found.make("w1", LIMITS)
    assert written(group) == {
        "memory.max": str(512 << 20),
        "memory.swap.max": "0",
        "pids.max": "41",
        "cpu.weight": "100",
        "cpu.max": "150000 100000",
    }


def test_all_sandboxes_of_a_process_are_in_one_group(
    tmp_path: Path, kernel: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is handed down to us is handed on; the last to leave removes the group."""
    place = tree(tmp_path / "user.slice", NEW)
    (place / "cgroup.subtree_control").write_text("cpu io memory pids\n")
    monkeypatch.setattr(cgroups, "_own", lambda: [("", place)])
    handed: list[str] = []
    write = cgroups._write

    def noted(path: Path, value: str) -> None:
        handed.extend([value] if path.name == "cgroup.subtree_control" else [])
        write(path, value)

    monkeypatch.setattr(cgroups, "_write", noted)
    found = cgroups.find()
    groups = [*found.make("w1", LIMITS), *found.make("w2", LIMITS)]
    assert {group.parent for group in groups} == {place / f"air-{os.getpid()}"}
    assert handed == ["+memory", "+pids", "+cpu"]
    found.leave()
    assert groups[0].parent.is_dir()  # sandboxes are in it


def test_version_2_without_the_controller_of_cpu_divides_nothing(
    tmp_path: Path, kernel: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tree(tmp_path / "user.slice", NEW)
    (place / "cgroup.subtree_control").write_text("memory pids\n")
    monkeypatch.setattr(cgroups, "_own", lambda: [("", place / "own.scope")])  # handed down by the one above
    tree(place / "own.scope", ())
    found = cgroups.find()
    assert found.version == 2 and found.memory == place and found.fair is None
    assert "cpu.max" not in written(found.make("w1", LIMITS)[0])


def test_version_1_limits_a_sandbox_in_a_group_for_each_controller(
    tmp_path: Path, kernel: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {name: tree(tmp_path / name, files) for name, files in OLD.items()}
    monkeypatch.setattr(cgroups, "_own", lambda: list(places.items()))
    monkeypatch.setattr(cgroups, "_usable", lambda parent, file: not file or (parent / file).exists())
    found = cgroups.find()
    assert found.version == 1 and found.parents() == [places[name] for name in OLD]
    made = {group.parent.parent.name: written(group) for group in found.make("w1", LIMITS)}
    assert made["memory"] == {name: str(512 << 20) for name in OLD["memory"]}
    assert made["pids"] == {"pids.max": "41"}
    assert made["cpu"] == {"cpu.shares": "1024", "cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000"}


@pytest.mark.parametrize(
    ("file", "words", "state"),
    [("cgroup.freeze", ("1", "0"), ("cgroup.events", "populated 1\nfrozen 1\n")),
     ("freezer.state", ("FROZEN", "THAWED"), ("freezer.state", "FROZEN"))],
    ids=["version 2", "version 1"],
)  # fmt: skip
def test_a_sandbox_is_frozen_and_thawed(
    tmp_path: Path, file: str, words: tuple[str, str], state: tuple[str, str]
) -> None:
    (tmp_path / file).write_text("")
    assert not cgroups.is_frozen([tmp_path])
    assert cgroups.freeze([tmp_path], True) and (tmp_path / file).read_text() == words[0]
    (tmp_path / state[0]).write_text(state[1])
    assert cgroups.is_frozen([tmp_path])
    assert cgroups.freeze([tmp_path], False) and (tmp_path / file).read_text() == words[1]
    assert not cgroups.freeze([tmp_path / "none"], True)


GONE = 2**22 - 7  # no process has this number


def left_by_dead_runs(place: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two runs' groups, with three sandboxes' in each, and what finds them."""
    monkeypatch.setattr(cgroups, "find", lambda: cgroups.Groups(place, place, 2))
    runs = [place / f"{cgroups.PREFIX}{GONE}", place / f"{cgroups.PREFIX}{GONE}-trial"]
    for run in runs:
        for name in ("w1", "w2", "w3"):
            (run / name).mkdir(parents=True)
    return runs


def test_what_dead_runs_have_left_is_removed_and_what_others_use_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_by_dead_runs(tmp_path, monkeypatch)
    own = tree(tmp_path / f"{cgroups.PREFIX}{os.getpid()}" / "w1", ())
    assert cgroups.reap() == 8
    assert list(tmp_path.iterdir()) == [own.parent] and own.is_dir()


def test_a_dead_runs_groups_that_another_process_has_removed_first_are_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between being found and being looked into. It ended whoever started beside another."""
    runs = left_by_dead_runs(tmp_path, monkeypatch)
    look = Path.iterdir

    def too_late(place: Path) -> Iterator[Path]:
        if place in runs:
            shutil.rmtree(place)
        return look(place)

    monkeypatch.setattr(Path, "iterdir", too_late)
    cgroups.reap()
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [errno.ENOENT, errno.ENODEV], ids=errno.errorcode.get)
def test_a_group_that_vanishes_while_it_is_thawed_keeps_no_other_from_being_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    runs = left_by_dead_runs(tmp_path, monkeypatch)
    vanishing = {run / "w2" for run in runs}
    for group in vanishing:
        (group / cgroups.FREEZE).write_text("")

    def write(path: Path, value: str) -> None:
        vanishing.remove(path.parent)
        shutil.rmtree(path.parent)
        raise OSError(error, os.strerror(error), str(path))

    monkeypatch.setattr(cgroups, "_write", write)
    cgroups.reap()
    assert not vanishing and list(tmp_path.iterdir()) == []


def test_time_and_lack_of_memory_are_read_from_either_version(tmp_path: Path) -> None:
    new, old, none = (tree(tmp_path / name, ()) for name in ("new", "old", "none"))
    (new / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 2000000\n")
    (old / "cpuacct.usage").write_text("2500000000\n")
    assert [cgroups.cpu_seconds([place]) for place in (new, old, none)] == [2.5, 2.5, None]
    (new / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\n")
    (old / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert [cgroups.ran_out_of_memory([place]) for place in (new, old, none)] == [True, True, False]
    (new / "memory.events").write_text("oom_kill 0\n")
    assert not cgroups.ran_out_of_memory([new])
