"""The environments that a config names: whether they are known, and whether they take the arguments they are given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from airloop.config import keys
from airloop.config.env_aliases import env_synonyms
from airloop.config.mistakes import correction, head
from airloop.config.sources import KeyPath, Mistake, Settings
from airloop.envs.base import find_args
from airloop.envs.files import VERIFIERS
from airloop.own_code import is_file_id
from airloop.plugins import plugins
from airloop.text.spelling import misspelt

_OWN = (
    'a file\'s is id = "./my_env.py:MyEnv" (`air init` writes one to begin with), one of verifiers '
    'id = "verifiers:NAME"'
)


def known_id(name: str) -> str | None:
    """The id here of an environment, by its own name or one that others have for the same tasks."""
    ours = env_synonyms().get(name, name)
    return ours if ours in plugins("envs") or is_file_id(ours) or ours.startswith(VERIFIERS) else None


def not_known(path: KeyPath, name: str, settings: Settings, at: KeyPath = ()) -> Mistake:
    known = sorted(plugins("envs"))
    origin = settings.origin(path)
    place = f"{origin.place}: " if origin else ""
    near = misspelt(name, known)
    if near:
        changes = {"orchestrator.env.0.id": near} if at else {keys.dotted(*path): near}
        fix = correction(changes, as_flags=bool(origin and origin.flag))
        problem = f"{place}no environment is known as {name!r}; did you mean {near!r}?"
        return Mistake(problem, fix, frozenset(changes), "A13", at, changes)
    return Mistake(
        f"{place}the environment {name!r} is not known here: nothing else is trained in its place.",
        f"your choice: name one of {', '.join(known)}; {_OWN}, a package adds one with an entry point in the group "
        f'"airloop.envs"',
        frozenset([f"orchestrator.env:{name}"]),
        "A13",
        at=at,
        choice=True,
    )


def none_named(settings: Settings) -> Mistake:
    return Mistake(
        f"{settings.files[-1]}: it names a model and no environment to train it on.",
        f"your choice: name one of {', '.join(sorted(plugins('envs')))} in [[orchestrator.env]] id = …; {_OWN}",
        frozenset(["orchestrator.env"]),
        "A13",
        choice=True,
    )


def check_environments(settings: Settings) -> Iterator[Mistake]:
    orchestrator = settings.tree.get("orchestrator")
    entries = orchestrator.get("env") if isinstance(orchestrator, dict) else None
    for index, entry in enumerate(entries if isinstance(entries, list) else []):
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
            continue
        path: KeyPath = ("orchestrator", "env", index)
        ours = known_id(entry["id"])
        if ours is None:
            mistake = not_known((*path, "id"), entry["id"], settings)
            yield mistake
            ours = str(next(iter(mistake.changes.values()), ""))
        if ours and isinstance(entry.get("args", {}), dict):
            yield from _arguments(ours, entry.get("args", {}), (*path, "args"), settings)


def _arguments(env_id: str, args: Mapping[str, Any], path: KeyPath, settings: Settings) -> Iterator[Mistake]:
    """Every argument that the environment refuses. What it lacks on this machine is said later, by whoever opens it."""
    model = find_args(env_id)
    if model is None:
        return
    try:
        model.model_validate(dict(args))
    except ValidationError as error:
        known = list(model.model_fields)
        for detail in error.errors(include_url=False):
            yield _argument(env_id, known, detail, args, path, settings)


def taken(env_id: str, args: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], list[str]]:
    """Of arguments that another trainer's environment was given, those that ours takes; names of the others; and the
    names that it knows."""
    model = find_args(env_id)
    if model is None:
        return dict(args), [], []
    known = list(model.model_fields)
    spelt = _respelt(args, known)
    others = [name for name in spelt if name not in known]
    return {name: value for name, value in spelt.items() if name in known}, others, known


def _argument(
    env_id: str, known: Sequence[str], detail: Any, args: Mapping[str, Any], path: KeyPath, settings: Settings
) -> Mistake:
    full: KeyPath = (*path, *detail["loc"])
    origin = settings.origin(full)
    as_flags = bool(origin and origin.flag)
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "expected", 1)
    about = frozenset([keys.dotted(*full)])
    if not detail["loc"]:  # about several of them together
        place = f"{origin.place}: " if origin else ""
        problem = f"{place}args of environment {env_id!r}: {message}."
        return Mistake(problem, "correct them: the sentence names which", about, choice=True)
    name = str(detail["loc"][0])
    if detail["type"] == "missing":
        place = f"{origin.place}: " if origin else ""
        problem = f"{place}environment {env_id!r} needs the argument {keys.dotted(*detail['loc'])!r}."
        return Mistake(problem, f"add it to args of [[orchestrator.env]]: {name} = …", about, choice=True)
    said = f"{head(full, detail['input'], origin)}: environment {env_id!r}"
    if detail["type"] != "extra_forbidden":
        return Mistake(f"{said}: {message}.", f"correct {name} in args", about, choice=True)
    near = misspelt(name, [other for other in known if other not in args])
    if near is None:
        fix = correction({}, as_flags=as_flags, what="argument", instead=f"it has {', '.join(known)}", choice=True)
        return Mistake(f"{said} has no argument {name!r}.", fix, about, "A1", choice=True)
    changes = {keys.dotted(*path, near): detail["input"]} if as_flags else {keys.dotted(*path): _respelt(args, known)}
    fix = correction(changes, as_flags=as_flags)
    return Mistake(f"{said} has no argument {name!r}; the nearest is {near}.", fix, about, "A1", changes=changes)


def _respelt(args: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """All of the arguments, as they are pasted over the others: with every misspelt name corrected."""
    left = [name for name in known if name not in args]
    return {(name if name in known else misspelt(name, left) or name): value for name, value in args.items()}
