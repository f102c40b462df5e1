"""docs/api.md, made of the docstrings, signatures and comments of the public names. Nothing is imported.

python scripts/api.py > docs/api.md
"""

from __future__ import annotations

import ast
import textwrap
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
# Of each part: a sentence, then module and names; of a class in brackets the members that are public.
PARTS: dict[str, tuple[str, dict[str, list[str]]]] = {
    "Train": (
        "What `air train` and `air eval` do. A config has the keys that `air train --help` lists.",
        {
            "airloop.api": ["train", "evaluate"],
            "airloop.frames": ["load_run", "LoadedRun"],
            "airloop.config": ["load_config", "Config(warnings)", "with_changes", "to_toml"],
            "airloop.training": [
                "start",
                "Finished",
                "Run(open, name, status, metrics, evaluation, evaluations, alarms)",
            ],
            "airloop.step": ["Outcome", "best_step"],
            "airloop.watch.display.display": ["Display()"],
        },
    ),
    "Environments": (
        "What an environment of your own subclasses ([environments.md](environments.md); `air init DIR` writes one).",
        {
            "airloop.envs.base": ["Environment", "Session", "Opening", "EnvArgs", "ActionFormat", "load_environment"],
            "airloop.envs.tools": ["ToolSession", "tool"],
            "airloop.envs.prompts.reward": ["reward"],
        },
    ),
    "Data": (
        "Plain, frozen, and as they stand in the files of a run.",
        {
            "airloop.types": [
                *("Task", "Message", "Action", "Observation", "Score", "Sampled", "Times", "Turn", "Branch"),
                *("Trajectory", "Ending", "Group", "Agent"),
            ]
        },
    ),
    "Errors": ("", {"airloop.errors": ["AirError", "InfraError", "Stopped", "MissingRequirement"]}),
    "Engine": (
        "Token ids in, token ids out.",
        {"airloop.engine.base": ["Engine", "Sampling", "Generation", "Limits", "ContextFull"]},
    ),
    "Losses": (
        "See [losses.md](losses.md).",
        {"airloop.learn.losses.base": ["LossSpec", "LossTerms", "LossSettings"]},
    ),
    "Checks": ("", {"airloop.doctor.base": ["check", "Finding", "passed", "not_judged"]}),
    "Onlookers": ("", {"airloop.events": ["Watcher"], "airloop.sinks.base": ["Sink"]}),
}


@cache
def source(module: str) -> str:
    path = ROOT / module.replace(".", "/")
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")


def find(module: str, name: str) -> tuple[ast.stmt, list[str]]:
    """Where a name is defined, followed through imports, with the lines of that file."""
    for node in ast.parse(source(module)).body:
        if isinstance(node, Definition) and node.name == name:
            return node, source(module).splitlines()
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return node, source(module).splitlines()
        if isinstance(node, ast.ImportFrom) and node.module and name in [alias.name for alias in node.names]:
            return find(node.module, name)
    raise SystemExit(f"{module} has no {name}: mend PARTS in scripts/api.py")


def doc(node: Definition) -> list[str]:
    text = ast.get_docstring(node) or ""
    return [part if is_code(part) else " ".join(part.split()) for part in text.split("\n\n") if part]


def is_code(part: str) -> bool:
    return part.startswith("    ") or "\n    " in part


def comment(node: ast.stmt, lines: list[str]) -> str:
    """Behind a field, or in the lines above it."""
    _, mark, behind = lines[(node.end_lineno or node.lineno) - 1].partition("  # ")
    above: list[str] = []
    for line in reversed(lines[: node.lineno - 1]):
        if not line.strip().startswith("# "):
            break
        above.insert(0, line.strip().removeprefix("# "))
    return behind if mark else " ".join(above)


def call(node: ast.FunctionDef | ast.AsyncFunctionDef, method: bool = False) -> str:
    arguments = ast.unparse(node.args)
    if method and "staticmethod" not in decorators(node):
        arguments = arguments.partition(", ")[2]
    returned = f" -> {ast.unparse(node.returns)}" if node.returns and ast.unparse(node.returns) != "None" else ""
    return f"{'await ' * isinstance(node, ast.AsyncFunctionDef)}{node.name}({arguments}){returned}"


def decorators(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {ast.unparse(one) for one in node.decorator_list}


def members(node: ast.ClassDef, lines: list[str], only: list[str] | None) -> list[str]:
    """A class's fields and methods; its constructor where it is no dataclass."""
    rows: list[tuple[str, str]] = []
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            value = f" = {ast.unparse(item.value)}" if item.value else ""
            name, text = item.target.id, f"{item.target.id}: {ast.unparse(item.annotation)}{value}"
            told = comment(item, lines)
        elif isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            name, told = item.name, " ".join(doc(item))
            text = call(item, method=True)
            if "property" in decorators(item):
                text = f"{item.name}: {ast.unparse(item.returns) if item.returns else ''}"
            elif name == "__init__":
                text = text.replace("__init__", node.name)
        else:
            continue
        hidden = name.startswith("_") and name != "__init__"
        if not hidden and (only is None or name in only or name == "__init__"):
            rows.append((text, told))
    if not any(told for _, told in rows):
        return ["", *(f"    {text}" for text, _ in rows)]
    return ["", "| | |", "|---|---|", *(f"| `{cell(text)}` | {cell(told)} |" for text, told in rows)]


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def entry(module: str, written: str) -> list[str]:
    name, bracket, inside = written.partition("(")
    only = [one.strip() for one in inside.strip(")").split(",") if one.strip()] if bracket else None
    node, lines = find(module, name)
    said = ["", f"### {module}.{name}", ""]
    if isinstance(node, ast.Assign):
        said += textwrap.wrap(comment(node, lines), 120)
        return [*said, "", f"    {ast.unparse(node)}"]
    assert isinstance(node, Definition)
    if not isinstance(node, ast.ClassDef):
        said += [f"    {call(node)}", ""]
    for index, part in enumerate(doc(node)):
        said += [
            *([""] if index else []),
            *(part.splitlines() if part.startswith("    ") or "\n    " in part else textwrap.wrap(part, 120)),
        ]
    return said + (members(node, lines, only) if isinstance(node, ast.ClassDef) else [])


def page() -> str:
    lines = [
        "# The Python interface",
        "",
        "Made by `python scripts/api.py > docs/api.md` of what stands in the code; a test keeps it current. Names that",
        "are not here may change without notice; before 1.0 these may, too, and CHANGELOG.md says so.",
    ]
    for title, (sentence, modules) in PARTS.items():
        lines += ["", f"## {title}", *(["", sentence] if sentence else [])]
        for module, names in modules.items():
            for name in names:
                lines += entry(module, name)
    text = "\n".join(lines)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return text.rstrip() + "\n"


if __name__ == "__main__":
    print(page(), end="")
