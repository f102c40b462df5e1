"""Backends to test with. Each test says what it expects of any of them (support/sandbox_contract.py)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace

import pytest
from support import container_engine as engines

from airloop.errors import AirError
from airloop.sandbox.backends import make_backend
from airloop.sandbox.base import Backend, Image, Sandbox

pytest.register_assert_rewrite("support.sandbox_contract")
Check = Callable[[Sandbox, "Playground"], Awaitable[None]]


@dataclass
class Playground:
    """A backend with the event loop it lives in."""

    kind: str
    backend: Backend
    runner: asyncio.Runner
    container: str  # the image's name

    def play(self, check: Check, image: Image) -> None:
        self.runner.run(self._play(check, image))

    async def _play(self, check: Check, image: Image) -> None:
        sandbox = await self.start(image)
        try:
            await asyncio.wait_for(check(sandbox, self), 120)
        finally:
            await sandbox.close()

    async def start(self, image: Image) -> Sandbox:
        return await self.backend.start(replace(image, container=self.container))


@pytest.fixture(scope="session")
def container_engine() -> Iterator[str]:
    """The socket of a container engine."""
    with contextlib.ExitStack() as stack:
        try:
            path = stack.enter_context(engines.engine())
        except engines.NoEngine as why:
            pytest.skip(str(why))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DOCKER_HOST", f"unix://{path}")
            yield path


@pytest.fixture(scope="session")
def container_image(container_engine: str) -> str:
    """The name of an image with a shell, coreutils and python3."""
    try:
        return engines.import_image(container_engine, "air-tests", *engines.image_files())
    except engines.NoEngine as why:
        pytest.skip(str(why))


@pytest.fixture(scope="module", params=["bubblewrap", pytest.param("container", marks=pytest.mark.slow)])
def backend(request: pytest.FixtureRequest) -> Iterator[Playground]:
    container = request.getfixturevalue("container_image") if request.param == "container" else ""
    with asyncio.Runner() as runner:

        async def make() -> Backend:
            return make_backend(request.param)

        try:
            made = runner.run(make())
        except AirError as why:
            pytest.skip(str(why))
        yield Playground(request.param, made, runner, container)
        runner.run(made.close())
