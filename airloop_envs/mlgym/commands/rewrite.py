"""The multi-line forms of `edit` and `insert`, made into here-documents that bash passes on byte for byte."""

from __future__ import annotations

import re
import shlex

from airloop_envs.mlgym.commands.syntax import BLOCKS, HereDocument, read

# A line like this inside an edit's text is another edit whose predecessor was never closed.
ANOTHER = re.compile(r"^(edit[ \t]+\d+:\d+|insert[ \t]+\d+)[ \t]*$", re.MULTILINE)
NAMES = {marker: name for name, marker in BLOCKS.items()}


def prepare(command: str) -> str:
    """The bash text to run. An edit that is never closed gives a command that only says so.

    Nothing else is changed: not what stands in quotes or in other here-documents, nor an `edit` whose text
    comes from a pipe, a file or a here-document with another delimiter.
    """
    found = [document for document in read(command).documents if document.block]
    for document in found:
        if problem := _problem(command, document):
            return f"printf '%s\\n' {shlex.quote(problem)} >&2; (exit 1)"
    for document in reversed(found):
        command = _rewritten(command, document)
    return command


def _rewritten(command: str, document: HereDocument) -> str:
    head = command[: document.start] + " " * document.implied
    if document.body_start == document.body_end:
        # bash gives /dev/null for an empty here-document, and then nobody knows that no text was meant.
        rest = command[document.end : document.body_start] + command[document.stop :].removeprefix("\n")
        return f"{head}< <(:){rest}"
    # The closing line is the only one that holds the marker, so the marker is a safe delimiter.
    body = command[document.end : document.body_end] + document.delimiter
    return f"{head}<< '{document.delimiter}'{body}{command[document.stop :]}"


def _problem(command: str, document: HereDocument) -> str:
    name = NAMES[document.delimiter]
    missing = f"`{name}` needs its text on the lines after it, then a line with {document.delimiter} alone."
    if not document.closed:
        return f"Nothing was run: {missing}"
    if another := ANOTHER.search(command[document.body_start : document.body_end]):
        return f"Nothing was run: `{another.group().strip()}` stands inside the text of `{name}`. {missing}"
    return ""
