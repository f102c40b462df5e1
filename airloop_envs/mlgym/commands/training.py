"""Whether a command may run as long as a training does."""

from __future__ import annotations

import re
from collections.abc import Mapping

from airloop_envs.mlgym.commands.syntax import ASSIGNMENT, read

PROGRAM = re.compile(r"(?:.*/)?(?:python[\d.]*|torchrun|accelerate|deepspeed|[^/]+\.py)|.*/[^/]+\.py")
SHELLS = {"bash", "sh", "dash"}
# Programs that run another one, and their options whose value is a word of its own.
RUNNERS: Mapping[str, str] = {
    "builtin": "",
    "command": "",
    "env": "uCS",
    "exec": "a",
    "ionice": "cn",
    "nice": "n",
    "nohup": "",
    "setsid": "",
    "stdbuf": "ioe",
    "sudo": "ug",
    "taskset": "",
    "time": "fo",
    "timeout": "sk",
    "xargs": "adEILnPs",
}
NUMBER = re.compile(r"(0x)?[\d.,-]+[smhd]?")  # a duration, a niceness, a set of cores


def is_training(command: str) -> bool:
    """Whether it runs python, torchrun, accelerate or deepspeed, as a command and not merely as a word."""
    return any(_runs(found.arguments()) for found in read(command).commands)


def _runs(words: list[str]) -> bool:
    while words:
        name = words[0].rsplit("/", 1)[-1]
        if PROGRAM.fullmatch(words[0]):
            return True
        if name in SHELLS or name == "eval":
            return _shell_runs(name, words[1:])
        if name not in RUNNERS:
            return False
        words = _behind_options(words[1:], RUNNERS[name])
    return False


def _shell_runs(name: str, words: list[str]) -> bool:
    if name == "eval":
        return is_training(" ".join(words))
    for place, word in enumerate(words[:-1]):
        if re.fullmatch(r"-[a-z]*c", word):
            return is_training(words[place + 1])
    return False


def _behind_options(words: list[str], with_value: str) -> list[str]:
    while words:
        if re.fullmatch(r"-[A-Za-z]", words[0]) and words[0][1] in with_value:
            words = words[2:]
        elif words[0].startswith("-") or ASSIGNMENT.match(words[0]) or NUMBER.fullmatch(words[0]):
            words = words[1:]
        else:
            break
    return words
