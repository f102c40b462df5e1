"""Data that a checkout does not ship and makes with a script of its own, as MLGym's house prices.

The script lies in `_helpers` beside the directory that the data is to be in, reads what lies there too, and writes the
rows for agents together with the answers. It is run in a copy, in a sandbox without a network, so the checkout stays as
it is; what it wrote is kept in the cache, named by the script and what it reads.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from airloop.errors import AirError
from airloop.files import cache_directory, whole_directory
from airloop.locks import locked
from airloop.sandbox.base import Backend, Image
from airloop_envs.mlgym.digests import add_files
from airloop_envs.mlgym.paths import ROOT_VARIABLE, strays

HELPERS, SCRIPT = "_helpers", "_generate_split.py"
SCRIPT_S = 600.0
LAST_LINES = 12  # of a script that failed, which say why
# MLGym's script is of the time of pandas 2, which took `axis` beside `columns` for said twice; pandas 3 refuses it.
RUN = f"""cd {HELPERS} && python - <<'AIR_END'
import runpy
import pandas

drop = pandas.DataFrame.drop


def drop_as_before(frame, *args, **named):
    if named.keys() & {{"index", "columns"}}:
        named.pop("axis", None)
    return drop(frame, *args, **named)


pandas.DataFrame.drop = drop_as_before
runpy.run_path("{SCRIPT}", run_name="__main__")
AIR_END"""


@dataclass(frozen=True)
class Generator:
    helpers: Path
    data: Path  # where the checkout's tasks look for what it makes

    def sources(self) -> dict[str, Path]:
        """The script and what it reads."""
        found = (path for path in self.helpers.rglob("*") if path.is_file() and path.suffix != ".pyc")
        return {path.relative_to(self.helpers).as_posix(): path for path in found}

    def place(self) -> Path:
        """Where what it makes is kept."""
        digest = hashlib.sha256()
        add_files(digest, self.sources())
        name = f"{self.data.parent.name}-{digest.hexdigest()[:16]}"
        return cache_directory() / "mlgym" / "made" / name / self.data.name


def find_generator(root: Path, data: Path) -> Generator | None:
    helpers = data.parent / HELPERS
    if not (helpers / SCRIPT).is_file() or any(strays(root, helpers)):
        return None
    return Generator(helpers, data)


def command(key: str, root: Path) -> str:
    """What makes the data of a task; the checkout is named unless the variable names it already."""
    said = os.environ.get(ROOT_VARIABLE)
    named = said is not None and Path(said).expanduser().resolve() == root
    return shlex.join(["air", "tasks", "prepare", key, *([] if named else ["--mlgym-root", str(root)])])


def how_to_make(generator: Generator, key: str, root: Path) -> str:
    return (
        f"The data {generator.data} is not there yet: the checkout makes it with {HELPERS}/{SCRIPT}. "
        f"`{command(key, root)}` runs that in a copy and leaves the checkout as it is; to have the data in the "
        f"checkout itself, run `cd {shlex.quote(str(generator.helpers))} && python {SCRIPT}` (MLGym's needs pandas 2). "
        "Either way its answers stay hidden from agents."
    )


async def make(generator: Generator, backend: Backend) -> None:
    """Makes the data unless it is there. AirError says what the script said."""
    place = generator.place()
    with locked(place.parent.with_name(f".{place.parent.name}.lock")):
        if place.is_dir():
            return
        written = await _run(generator, backend)
        with whole_directory(place.parent) as beside:
            for name, content in written.items():
                (beside / name).parent.mkdir(parents=True, exist_ok=True)
                (beside / name).write_bytes(content)


async def _run(generator: Generator, backend: Backend) -> Mapping[str, bytes]:
    """What the script writes, by its path beside the copy."""
    copied = {f"{HELPERS}/{name}": path.read_bytes() for name, path in generator.sources().items()}
    sandbox = await backend.start(Image(files=tuple((name, content, 0o644) for name, content in copied.items())))
    try:
        ran = await sandbox.run(RUN, SCRIPT_S)
        names = await sandbox.list(f"{generator.data.name}/**/*")
        contents = {name: await sandbox.get(name) for name in names}
    finally:
        await sandbox.close()
    last = "\n".join(f"    {line}" for line in ran.output.rstrip().splitlines()[-LAST_LINES:])
    if ran.exit_code != 0 or not contents or None in contents.values():
        why = f"ended with exit code {ran.exit_code}" if ran.exit_code else f"left no files in {generator.data.name}/"
        raise AirError(
            f"{generator.helpers / SCRIPT}, run in a copy, {why}:\n{last}",
            "mend what it says; the copy is removed, and the checkout is as it was.",
        )
    return {name: content for name, content in contents.items() if content is not None}
