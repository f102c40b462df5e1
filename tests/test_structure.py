"""The structure: no file imports in a circle, none against the direction, none is longer than 400 lines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from support.packages import PACKAGES, ROOT, python_files

# From the ground up: a part imports those above it in this list, and never one below. Parts of one line know nothing of
# each other.
FLOORS = (
    (
        "types",
        "certificates",
        "errors",
        "cpu_progress",
        "forkserver",
        "interrupts",
        "limits",
        "locks",
        "open_files",
        "plugins",
        "section",
        "seeds",
        "text",
        "threads",
        "version",
    ),
    ("os_errors",),
    ("clocks", "events", "extras", "files", "machine", "own_code", "shipped", "waits"),
    ("envs", "models", "pulse", "ranks", "sandbox", "stats"),
    ("policy", "starter", "success"),
    ("learn",),
    ("sinks",),
    ("config",),
    ("engine", "environments", "plan"),
    ("chat",),
    ("serve",),
    ("rollout",),
    ("programs",),
    ("verifiers",),
    ("runs",),
    ("determinism", "frames", "packaged", "start_checkpoint"),
    ("assemble",),
    ("watch",),
    ("evaluation", "launch", "rewards", "speed", "warmstart"),
    ("costs",),
    ("budget", "cluster"),
    ("step", "supply"),
    ("doctor", "loop", "stream"),
    ("eval", "training"),
    ("api", "dry_run", "export", "logbook", "rank"),
    ("commands",),
    ("cli",),
    ("__main__",),
    ("airloop_envs", "airloop_lab"),
    ("airloop_view",),
)
LONGEST = 400
# Longer still: to be cut.
TO_BE_CUT: frozenset[str] = frozenset()
# Environments that are packages of their own: the trainer knows them by their entry points alone.
ENVIRONMENTS = re.compile(r"(?<![a-z])(?:mlgym|musique|soup)(?![a-z])", re.IGNORECASE)
NAMED = {("airloop.commands.tasks", "mlgym_root")}  # --mlgym-root, the hidden flag that --arg mlgym_root=… was
FLOOR = {part: number for number, parts in enumerate(FLOORS) for part in parts}


@cache
def modules() -> dict[str, str]:
    """The text of every module by its dotted name."""
    found = {}
    for path in python_files():
        parts = path.relative_to(ROOT).with_suffix("").parts
        if "builtin" not in parts:  # what agents and graders run, in worlds of their own
            found[".".join(parts).removesuffix(".__init__")] = path.read_text(encoding="utf-8")
    return found


@cache
def imports(module: str) -> frozenset[str]:
    """Modules of ours that it imports, at the top, inside functions, or for types only."""
    return frozenset(name for name in _imported(modules()[module]) if name != module)


def _imported(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules())
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in modules() or node.module in modules():
                    yield whole if whole in modules() else node.module


def part_of(module: str) -> str:
    first, _, rest = module.partition(".")
    return rest.partition(".")[0] if first == PACKAGES[0] else first


def test_nothing_is_imported_in_a_circle() -> None:
    left = {module: imports(module) for module in modules()}
    while True:
        needed = frozenset().union(*left.values())
        in_circle = {m: needs & left.keys() for m, needs in left.items() if m in needed and needs & left.keys()}
        if in_circle == left:
            break
        left = in_circle
    assert not left, f"a circle, or between two: {sorted(left)}"


def test_imports_go_down() -> None:
    wrong = []  # of all modules: six hundred tests would take longer to begin and to end than to do
    for module in sorted(modules()):
        if not (here := part_of(module)):  # the package's face
            continue
        others = {name: part_of(name) for name in imports(module)}
        above = [name for name, part in others.items() if part and part != here and FLOOR[part] >= FLOOR[here]]
        wrong += [f"{module} is of the part {here!r} and imports from above or beside it: {above}"] if above else []
    assert not wrong, "\n".join(wrong)


@pytest.mark.long
def test_every_module_and_name_that_is_imported_is_there() -> None:
    """Also inside functions, which mypy and no test may reach."""
    missing = []
    for path in (*python_files(), *others()):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                asked = [(alias.name, "") for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                asked = [(node.module or "", alias.name) for alias in node.names]
            else:
                continue
            missing += [(str(path.relative_to(ROOT)), *one) for one in asked if not _is_there(*one)]
    assert not missing


def _is_there(module: str, name: str) -> bool:
    if module.partition(".")[0] not in PACKAGES:
        return True
    return module in modules() and (not name or f"{module}.{name}" in modules() or name in _names(module))


@cache
def _names(module: str) -> frozenset[str]:
    """What a module defines or imports at its top, also under a condition."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(modules()[module])):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return frozenset(found)


def others() -> Iterator[Path]:
    for folder in ("bench", "scripts", "tests"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def test_every_part_has_its_floor() -> None:
    assert {part_of(module) for module in modules()} - {""} <= FLOOR.keys()


def test_a_sentence_to_the_user_is_told_through_one_type() -> None:
    assert [module for module, text in modules().items() if "say: Callable" in text] == []


def test_the_trainer_names_no_environment_of_the_other_packages() -> None:
    found = {
        (module, node.value)
        for module, text in modules().items()
        if module.partition(".")[0] == PACKAGES[0] and ENVIRONMENTS.search(text)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and ENVIRONMENTS.search(node.value)
    }
    assert found == NAMED


def test_no_file_is_longer_than_can_be_read() -> None:
    long = {
        str(path.relative_to(ROOT)) for path in python_files() if path.read_text(encoding="utf-8").count("\n") > LONGEST
    }
    assert long == TO_BE_CUT


def test_what_several_tests_use_is_in_support() -> None:
    tests = ROOT / "tests"
    here = {path.relative_to(tests) for path in tests.rglob("*.py") if path.name != "conftest.py"}
    scripts = {Path("legacy/make.py"), Path("watch/record_healthy.py")}  # run by hand
    elsewhere = {path for path in here if path.parts[0] not in ("support", "interop") and path.name[:5] != "test_"}
    assert elsewhere == scripts


def test_no_two_tests_have_one_name() -> None:
    """Folders of tests are no packages: of two files of one name, pytest can import one only."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
