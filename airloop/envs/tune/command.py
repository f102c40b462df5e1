"""The agent's commands: what `python train.py …` accepts, and the errors a shell or Python would give.

Nothing an agent writes is executed. A line is split into words as a shell does, and the words are parsed
with argparse into a configuration; anything else is an error text.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "linear": ("C",),
    "tree": ("depth",),
    "forest": ("depth", "trees"),
    "boost": ("depth", "trees", "lr"),
    "knn": ("k",),
    "svm": ("C",),
}
MODELS = tuple(OPTIONS)
RANGES: Mapping[str, tuple[type[int] | type[float], float, float]] = {
    "depth": (int, 1, 16),
    "trees": (int, 1, 50),
    "lr": (float, 0.01, 1),
    "k": (int, 1, 50),
    "C": (float, 0.01, 100),
}
# What is not given. `linear` without C is scikit-learn's untuned default.
DEFAULTS: Mapping[str, float] = {"depth": 3, "trees": 10, "lr": 0.1, "k": 5, "C": 1.0}
BASELINE: Mapping[str, Any] = {"model": "linear", "scale": False}

SHELL_SIGNS = set(";&|<>`$(){}*?~!\\")
LONGEST_ERROR = 130  # characters, about 35 tokens: an error may quote what the agent wrote


class CommandError(Exception):
    """The text a shell would print."""

    def __str__(self) -> str:
        text = super().__str__()
        return text if len(text) <= LONGEST_ERROR else f"{text[: LONGEST_ERROR - 1]}…"


@dataclass(frozen=True, slots=True)
class Command:
    kind: Literal["train", "validate", "submit"]
    config: Mapping[str, Any] = field(default_factory=dict)
    ignored: bool = False  # further lines were there; only the first command runs


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CommandError(f"train.py: error: {message}")


def within(name: str) -> Callable[[str], float]:
    kind, low, high = RANGES[name]

    def convert(text: str) -> float:
        value = kind(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not in {low:g}-{high:g}")
        return value

    convert.__name__ = kind.__name__  # argparse names it: "invalid int value: 'x'"
    return convert


def train_parser() -> Parser:
    parser = Parser(prog="train.py", add_help=False)
    parser.add_argument("--model", required=True)
    for name in RANGES:
        parser.add_argument(f"--{name}", type=within(name))
    parser.add_argument("--scale", action="store_true")
    return parser


TRAIN = train_parser()


def parse(text: str) -> Command:
    """The first line's command; raises CommandError with the text to show."""
    lines = [line.strip() for line in text.strip().splitlines()]
    lines = [line.removeprefix("$ ") for line in lines if line and not line.startswith("#")]
    if not lines:
        raise CommandError("bash: empty command")
    if signs := SHELL_SIGNS.intersection(lines[0]):
        raise CommandError(f"bash: {min(signs)}: not allowed, one plain command only")
    try:
        words = shlex.split(lines[0])
    except ValueError as error:
        raise CommandError(f"bash: syntax error: {str(error).lower()}") from None
    return Command(*_recognise(words), ignored=len(lines) > 1)


def _recognise(words: list[str]) -> tuple[Literal["train", "validate", "submit"], Mapping[str, Any]]:
    match words:
        case ["validate"]:
            return "validate", {}
        case ["submit"]:
            return "submit", {}
        case ["validate" | "submit" as name, *_]:
            raise CommandError(f"{name}: takes no arguments")
        case ["python" | "python3", "train.py" | "./train.py", *options]:
            return "train", resolve(options)
        case ["python" | "python3" as name, file, *_] if not file.startswith("-"):
            raise CommandError(f"{name}: can't open file '{file}': No such file or directory")
        case ["python" | "python3" as name, *_]:
            raise CommandError(f"{name}: only train.py can be run")
        case [name, *_]:
            raise CommandError(f"bash: {name}: command not found")
    raise CommandError("bash: empty command")


def resolve(options: list[str]) -> dict[str, Any]:
    """The complete configuration: the options given and the defaults of the rest that the model has."""
    given = vars(TRAIN.parse_args(options))
    model, scale = given.pop("model"), given.pop("scale")
    if model not in OPTIONS:
        raise CommandError(f"train.py: error: --model: '{model}' is not one of {', '.join(MODELS)}")
    values = {name: value for name, value in given.items() if value is not None}
    for name in values:
        if name not in OPTIONS[model]:
            raise CommandError(f"train.py: error: {model} has no --{name}")
    if model != "linear":
        values = {name: values.get(name, DEFAULTS[name]) for name in OPTIONS[model]}
    return {"model": model, **values, "scale": scale}


def render(config: Mapping[str, Any]) -> str:
    """The command that gives this configuration."""
    options = [f"--{name} {value:g}" for name, value in config.items() if name in RANGES]
    return " ".join(["python train.py --model", config["model"], *options, *["--scale"] * config["scale"]])
