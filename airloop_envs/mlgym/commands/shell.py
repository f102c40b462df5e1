"""The commands as bash functions: an image's `setup`, and the files it needs inside."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import get_args

from airloop.sandbox.base import HOME
from airloop_envs.mlgym.commands.output import Kind

DIRECTORY = str(Path(__file__).parent / "inside")  # to bind at TOOLS_PATH: an agent cannot remove it there
TOOLS_PATH = "/opt/air/tools"
HOME_TOOLS_PATH = f"{HOME}/.air/tools"  # where files() go, for a sandbox without binds
WINDOW_VARIABLE = "AIR_WINDOW"

# What the agent is told: how a command is written, and what it does.
COMMANDS: tuple[tuple[str, str], ...] = (
    ("open <path> [<line>]", "Shows a file with line numbers, from about that line on, and makes it the open file."),
    ("goto <line>", "Shows the open file around that line."),
    ("scroll_up", "Shows the lines before those last shown."),
    ("scroll_down", "Shows the lines after those last shown."),
    ("create <path>", "Makes a new, empty file and opens it."),
    (
        "edit <start>:<end>\n<text>\nend_of_edit",
        "Replaces those lines of the open file, both included, by the text; no text deletes them.",
    ),
    ("insert <line>\n<text>\nend_of_insert", "Puts the text after that line of the open file; 0 is the beginning."),
    ("search_dir <term> [<dir>]", "Lists the files that contain the term."),
    ("search_file <term> [<file>]", "Shows the lines that contain the term, in the open file if none is given."),
    ("find_file <name> [<dir>]", "Lists the files of that name; * and ? may be used."),
    ("validate", "Scores the current submission; you go on afterwards."),
    ("submit", "Scores the current submission and ends the task."),
    ("skip", "Ends the task without scoring anything."),
    ("exit_forfeit", "Gives the task up."),
)

# The tool prints its text to stdout and the new state to descriptor 3, which alone is captured: names with any
# bytes survive, and the full stop at the end keeps their last newlines.
_CALL = r"""
__air_python=$(type -P python3)
__air_tool() {
  local state='' code=0
  if [[ ! -r $__air_tools/tool.py || ! -x $__air_python ]]; then
    printf '%s cannot work any more: its program was removed. Use ordinary shell commands instead.\n' "$1" >&2
    return 127
  fi
  { state=$("$__air_python" -I -S -B -W ignore "$__air_tools/tool.py" "${CURRENT_FILE-}" "${CURRENT_LINE-}" \
      "${AIR_WINDOW-}" "$@" 3>&1 1>&9 9>&-) || code=$?; } 9>&1
  if [[ -n $state ]]; then
    CURRENT_LINE=${state%%:*}
    state=${state#*:}
    CURRENT_FILE=${state%.}
  fi
  return "$code"
}
__air_request() {
  if (( $# > 1 )); then
    printf '%s takes no arguments; they were not used.\n' "$1"
  fi
  printf '\037air:%s\037\n' "$1"
}
CURRENT_FILE=''
CURRENT_LINE=''
"""


def _function(name: str) -> str:
    return f'{name}() {{ {"__air_request" if name in get_args(Kind) else "__air_tool"} {name} "$@"; }}\n'


def setup(tools: str = TOOLS_PATH) -> str:
    """Bash that defines every command; `tools` is the directory inside the sandbox where tool.py lies.

    The environment variable AIR_WINDOW says how many lines a window has (1000 if it is not set).
    """
    names = [signature.split()[0] for signature, _ in COMMANDS]
    return f"__air_tools={shlex.quote(tools)}{_CALL}" + "".join(map(_function, names))


SETUP = setup()


def files() -> tuple[tuple[str, bytes, int], ...]:
    """The programs as files of an image, for `setup(HOME_TOOLS_PATH)`. Prefer the bind: an agent can remove these."""
    programs = sorted(Path(DIRECTORY).glob("*.py"))
    return tuple((f"{HOME_TOOLS_PATH}/{program.name}", program.read_bytes(), 0o444) for program in programs)
