"""A file of another trainer: every table and key of it that has a meaning there, told in one round.

A table that is not here is answered as a whole, at its header, since its keys go with it; a key in a table that is here
is answered at its line. What is answered is taken out of the settings, and what it becomes is put in.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airloop.config import keys
from airloop.config.environments import known_id, not_known, taken
from airloop.config.foreign import FOREIGN_VALUES, SETTLED, Answer, number
from airloop.config.foreign_paths import foreign_at, is_one, is_prime
from airloop.config.mistakes import by_name, correction, fitting, head
from airloop.config.sources import KeyPath, Mistake, Settings, at, leaves, parse_path, take_out
from airloop.config.toml import toml_value
from airloop.learn.losses import POLICY_LOSSES
from airloop.plugins import plugins
from airloop.sinks import SINKS
from airloop.text.spelling import misspelt

log = logging.getLogger(__name__)

_SOURCES: tuple[KeyPath, ...] = (("orchestrator", "train", "source"), ("orchestrator", "train", "env"))
_EVALUATED: tuple[KeyPath, ...] = (("orchestrator", "eval", "source"), ("orchestrator", "eval", "env"))
# What prime-rl does where its file says nothing, and air would do otherwise.
_PRIME_DEFAULTS: dict[str, Any] = {
    "model.name": "Qwen/Qwen3-0.6B",
    "trainer.optim.lr": 1e-6,
    "trainer.optim.weight_decay": 0.01,
    "trainer.optim.betas": [0.9, 0.999],
    "trainer.loss.scale_rewards": False,
    "orchestrator.batch_size": 128,
}


# Where earlier files have [trainer.model.lora], key for key.
_OLD_PLACE: KeyPath = ("trainer", "model", "experimental")
# Keys that no file of another trainer has.
_OURS: tuple[str, ...] = (
    "budget",
    "cluster",
    "warmstart",
    "logbook",
    *(SINKS.keys() - {"wandb"}),  # which others have, too
    "deterministic",
    "run_name",
    "trainer.token_budget",
)
_OURS += (
    "trainer.processes",
    "trainer.model.train",
    "trainer.model.shard",
    "model.device",
    "model.dtype",
    "model.adapter",
    "inference.backend",
)
_OURS += ("trainer.loss.passes", "trainer.loss.credit", "orchestrator.eval.split", "orchestrator.episode_timeout_s")


def translate(settings: Settings, *, environments: bool) -> list[Mistake]:
    """`environments` is False for the config of a run, which leaves nothing out."""
    found = _flags(settings)
    said = copy.deepcopy(settings.tree)
    moved = False
    for path, value in _foreign(said, ()):
        if _is_done(path, value, said):
            take_out(settings.tree, path)
        elif mistake := _answered(path, value, said, settings):
            settings.correct(mistake)
            read = _is_read(path, value, mistake)
            moved = moved or read
            found += [] if read else [mistake]
    if environments and settings.files and is_whole(said) and _is_prime_file(said):
        as_there = _defaults(said, settings)
        if found or not moved or any(mistake.choice for mistake in as_there):
            found += as_there
        else:
            _tell_defaults(as_there, settings)
    return found


def _flags(settings: Settings) -> list[Mistake]:
    """Flags are answered one by one, with flags."""
    said = copy.deepcopy(settings.tree)
    found = []
    given = [path for path, origin in settings.origins.items() if origin.flag]
    for path in given:
        value = at(settings.tree, *path)
        if _is_done(path, value, said):
            take_out(settings.tree, path)
        elif keys.field_at(path) is None and not keys.is_free(path) and (answer := by_name(path, value, said)):
            found.append(_mistake(path, value, answer, settings, as_flags=True))
            settings.correct(found[-1])
    return found


def _tell_defaults(as_there: Sequence[Mistake], settings: Settings) -> None:
    """Of a file that needs no correction and is read as it stands: what it leaves out is as it is there, and said."""
    for mistake in as_there:
        said = ", ".join(f"{key} = {toml_value(value)}" for key, value in mistake.changes.items())
        log.warning("%s: a file of prime-rl: what it leaves out is as it is there: %s", settings.files[-1], said)


def _is_done(path: KeyPath, value: Any, said: Mapping[str, Any]) -> bool:
    """Whether a key that is settled here has the value that it is settled to."""
    alias = SETTLED.get(keys.dotted(*path))
    return alias is not None and alias.answer(value, said).done


def _is_read(path: KeyPath, value: Any, mistake: Mistake) -> bool:
    """Whether nothing is to be corrected but where it stands, and that is understood."""
    whole = {"trainer.model.lora": value["lora"]} if isinstance(value, dict) and [*value] == ["lora"] else {}
    same = bool(whole) and leaves(mistake.changes) == leaves(whole)
    return path == _OLD_PLACE and same and not mistake.choice


def _is_prime_file(said: Mapping[str, Any]) -> bool:
    """By keys that only prime-rl has; or, without a key of ours, by an environment that is not here, or a header
    without keys, which switches something on there and says nothing here."""
    if any(is_prime(path) or path[:3] in _SOURCES + _EVALUATED for path, _ in _foreign(said, ())):
        return True
    if any(at(said, *key.split(".")) is not None for key in _OURS):
        return False
    names = [env_id(entry) for entry in _entries(said, ("orchestrator", "env"))]
    strange = at(said, "model", "name") is not None and any(
        known_id(name) is None and misspelt(name, plugins("envs")) is None for name in names
    )
    bare = at(said, "model", "name") is not None and {} in (
        said.get("inference"),
        said.get("trainer"),
        said.get("ckpt"),
    )
    return strange or bare


def is_whole(said: Mapping[str, Any]) -> bool:
    """Whether it says what is trained, and not only some settings."""
    return any(
        at(said, *path) is not None
        for path in (("model", "name"), ("trainer", "model", "name"), ("orchestrator", "env"), *_SOURCES)
    )


def _foreign(node: Mapping[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Tables and keys that are not in the schema, with their values; of tables that hold only tables, those."""
    for key, value in node.items():
        here: KeyPath = (*path, key)
        known = keys.field_at(here)
        if known is not None and isinstance(value, dict) and keys.section_of(known.annotation):
            yield from _foreign(value, here)
        elif known is not None and isinstance(value, list) and keys.section_of(known.annotation):
            for index, element in enumerate(value):
                if isinstance(element, dict):
                    yield from (
                        [((*here, index), element)] if "taskset" in element else _foreign(element, (*here, index))
                    )
        elif known is None and _is_tables(value) and here[:3] in _SOURCES + _EVALUATED:
            yield from (((*here, index), element) for index, element in enumerate(value))
        elif known is None and isinstance(value, dict) and value and all(_is_table(v) for v in value.values()):
            if is_one(here):
                yield here, value
            else:
                yield from _foreign(value, here)
        elif known is None:
            yield here, value


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or _is_tables(value)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(element, dict) for element in value)


def _answered(path: KeyPath, value: Any, said: Mapping[str, Any], settings: Settings) -> Mistake | None:
    if path[:3] in _SOURCES or (path[:2] == ("orchestrator", "env") and len(path) == 3):
        return _environment(path, value, settings)
    if path[:3] in _EVALUATED:
        return _mistake(path, value, _evaluated(value, said), settings)
    if isinstance(value, dict):
        answer = _table(path, value, said)
        return _mistake(path, value, answer, settings) if answer else None
    answer = by_name(path, value, said)
    return _mistake(path, value, answer, settings) if answer else None


def _mistake(path: KeyPath, value: Any, answer: Answer, settings: Settings, as_flags: bool = False) -> Mistake:
    what = "table" if isinstance(value, dict) else "line"
    answer = _beside_others(fitting(_with_values(answer)), settings.tree)
    changes = answer.changes
    return Mistake(
        f"{head(path, value, settings.origin(path))}: {answer.why}.",
        correction(changes, as_flags=as_flags, what=what, instead=answer.instead, choice=answer.choice),
        frozenset(changes),
        answer.id,
        at=path,
        changes=changes,
        choice=answer.choice,
    )


def _with_values(answer: Answer) -> Answer:
    """Values that have other names here, too; of one that has none, its key is left out and the user decides."""
    for key, value in answer.changes.items():
        known = FOREIGN_VALUES.get(key, {}).get(value) if isinstance(value, str) else None
        if known is not None:
            others = {k: v for k, v in answer.changes.items() if k != key}
            why = f'{answer.why}; {key.rpartition(".")[2]} = "{value}": {known.why}'
            instead = "; ".join(filter(None, (answer.instead, known.instead)))
            answer = Answer(why, {**others, **known.changes}, instead, answer.choice or known.choice, answer.id)
    return answer


def _beside_others(answer: Answer, tree: Mapping[str, Any]) -> Answer:
    """A key that the file has with another value already stays as it is: which of the two counts, the user decides."""
    for key, value in leaves_of(answer).items():
        there = at(tree, *parse_path(key))
        if there is not None and there != value:
            others = {k: v for k, v in leaves_of(answer).items() if k != key}
            why = f"{answer.why}; {key} is {toml_value(there)} already, not {toml_value(value)}"
            instead = "; ".join(filter(None, (answer.instead, f"keep {toml_value(there)}, or change it there")))
            answer = Answer(why, others, instead, True, answer.id)
    return answer


def leaves_of(answer: Answer) -> dict[str, Any]:
    return {keys.dotted(*path): value for path, value in leaves(answer.changes).items()}


def _table(path: KeyPath, table: Mapping[str, Any], said: Mapping[str, Any]) -> Answer | None:
    """One answer for all of a table's keys."""
    whole = foreign_at(path)
    if whole is not None and (whole.read is not None or not table):
        return whole.answer(table, said)
    answers: dict[str, Answer] = {}
    for leaf, value in _inside(table, path):
        name = keys.dotted(*leaf[len(path) :])
        alias = foreign_at(leaf)
        answers[name] = alias.answer(value, said) if alias else Answer("has no equivalent here", choice=True)
    if not any(foreign_at(leaf) for leaf, _ in _inside(table, path)):
        return None
    changes = {key: value for answer in answers.values() for key, value in answer.changes.items()}
    instead = "; ".join(dict.fromkeys(answer.instead for answer in answers.values() if answer.instead))
    choice = any(answer.choice for answer in answers.values())
    return Answer(_reasons(answers), changes, instead or ("see `air train --help`" if choice else ""), choice)


def _reasons(answers: Mapping[str, Answer]) -> str:
    by_reason: dict[str, list[str]] = {}
    for name, answer in answers.items():
        by_reason.setdefault(answer.why or f"here {', '.join(answer.changes)}", []).append(name)
    if len(by_reason) == 1:
        return f"unknown table; {next(iter(by_reason))}"
    return "unknown table; " + "; ".join(f"{', '.join(names)}: {why}" for why, names in by_reason.items())


def _inside(table: Mapping[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _inside(value, (*path, key))
        else:
            yield (*path, key), value


def env_id(entry: Mapping[str, Any]) -> str:
    """What a source of tasks is called, at whichever of prime-rl's places."""
    for place in (("env", "taskset", "id"), ("taskset", "id"), ("id",), ("env", "id"), ("name",)):
        if isinstance(found := at(entry, *place), str):
            return found
    return ""


def _environment(path: KeyPath, entry: Mapping[str, Any], settings: Settings) -> Mistake:
    """A source of tasks as an environment of ours, or the refusal of one that is not here."""
    ours = known_id(env_id(entry))
    listed = path[:2] == ("orchestrator", "env")
    if ours is None:
        if listed:
            at(settings.tree, "orchestrator", "env")[path[2]] = {"id": "tune"}  # for the other checks only
        return not_known(path, env_id(entry), settings, at=() if listed else path)
    place = f"orchestrator.env.{path[2] if listed else len(at(settings.tree, 'orchestrator', 'env') or [])}"
    answer = _as_ours(ours, entry, place)
    mistake = _mistake(path, dict(entry), answer, settings)
    if listed:  # the element is replaced where it is, so that the others keep their places
        at(settings.tree, "orchestrator", "env")[path[2]] = {}
        mistake = replace(mistake, at=())
    return mistake


def _as_ours(ours: str, entry: Mapping[str, Any], place: str) -> Answer:
    task, given = at(entry, "env", "taskset") or at(entry, "taskset") or {}, at(entry, "args")
    args = dict(given) if isinstance(given, dict) else {}
    args |= {key: value for key, value in dict(task).items() if key not in ("id", "task")}
    args, others, known = taken(ours, args)
    changes: dict[str, Any] = {f"{place}.id": ours}
    if isinstance(name := entry.get("name"), str) and name != ours:
        changes[f"{place}.name"] = name
    if args:
        changes[f"{place}.args"] = args
    if number(entry.get("ratio")) is not None:
        changes[f"{place}.ratio"] = entry["ratio"]
    why = ["unknown table; an environment is [[orchestrator.env]] here, with its own way of asking and scoring"]
    instead = []
    if others:
        why.append(f"{', '.join(others)}: {ours} has no such arguments")
        instead.append(f"it has {', '.join(known)}")
    return Answer("; ".join(why), {**changes, **_beside(entry)}, "; ".join(instead), choice=bool(instead))


def _beside(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What one source says of how it is run, and is said of all of them here."""
    found = {
        "orchestrator.rollouts_per_example": at(entry, "group_size"),
        "orchestrator.workers_per_env": at(entry, "num_workers"),
        "orchestrator.retries": at(entry, "max_retries"),
        "orchestrator.episode_timeout_s": at(entry, "timeout", "rollout"),
    }
    return {key: value for key, value in found.items() if isinstance(value, int | float)}


def _entries(said: Mapping[str, Any], *paths: KeyPath) -> list[dict[str, Any]]:
    lists = [found for path in paths if isinstance(found := at(said, *path), list)]
    return [entry for found in lists for entry in found if isinstance(entry, dict)]


def _evaluated(entry: Mapping[str, Any], said: Mapping[str, Any]) -> Answer:
    """Evaluations are on held-out tasks of the environments that are trained on."""
    trained = {env_id(entry) for entry in _entries(said, *_SOURCES, ("orchestrator", "env"))}
    name = env_id(entry)
    changes = {
        "orchestrator.eval.num_examples": at(entry, "num_examples"),
        "orchestrator.eval.rollouts_per_example": at(entry, "group_size") or at(entry, "rollouts_per_example"),
        "orchestrator.eval.interval": at(entry, "interval"),
    }
    changes = {key: value for key, value in changes.items() if isinstance(value, int) and value > 0}
    if name in trained:
        why = "unknown table; held-out tasks of the environments that are trained on are evaluated by themselves"
        return Answer(why, changes)
    why = f"unknown table; a run is evaluated on held-out tasks of what it is trained on, and {name} is not"
    return Answer(why, instead=f"run `air eval` on the trained model with a config that names {name}", choice=True)


def _defaults(said: Mapping[str, Any], settings: Settings) -> list[Mistake]:
    """What a file of prime-rl leaves out means what it means there: what air would do instead is another run."""
    now = settings.tree
    missing = {key: value for key, value in _PRIME_DEFAULTS.items() if at(now, *key.split(".")) is None}
    if at(now, "trainer", "loss", "type") in POLICY_LOSSES:
        missing.pop("trainer.loss.scale_rewards", None)
    if at(now, "trainer", "model", "lora") is None and at(now, "trainer", "model", "train") is None:
        missing["trainer.model.train"] = "full"
    if at(now, "orchestrator", "sampling", "max_tokens") is None:
        length = at(now, "seq_len") or 2048
        missing["orchestrator.sampling.max_tokens"] = length
    name = settings.files[-1]
    found: list[Mistake] = []
    if missing:
        why = "it looks like a file of prime-rl, and what it leaves out has other defaults there than here"
        fix = f"if it is one, {correction(missing, as_flags=False).replace(' instead', '', 1)}"
        found.append(Mistake(f"{name}: {why}.", fix, frozenset(missing), "A13", changes=missing))
    for key, there in (("max_steps", "without end"), ("orchestrator.rollouts_per_example", "one reply per task")):
        if at(now, *key.split(".")) is None and (key == "max_steps" or at(said, "orchestrator", "group_size") is None):
            fix = f"your choice: write {key} = …"
            problem = f"{name}: it does not say {key}, which means {there} in prime-rl and has no equivalent here."
            found.append(Mistake(problem, fix, frozenset([key]), "A13", choice=True))
    for mistake in found:
        settings.correct(mistake)
    return found
