"""Bash text, read only as far as needed to know which words are commands and which lines are here-documents.

It follows quotes, comments, substitutions, `case` patterns, redirections and here-documents, so that neither
a string nor the text of a file is ever taken for a command. Text that bash itself would refuse gives some
reading and never an exception: bash will say what is wrong with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

# Commands of ours whose text follows on the next lines, up to a line that holds the marker alone.
BLOCKS: Mapping[str, str] = {"edit": "end_of_edit", "insert": "end_of_insert"}
BREAKS = " \t\n;&|<>()"
RESERVED = {"if", "then", "elif", "else", "fi", "do", "done", "while", "until", "!", "{", "}", "coproc", "esac"}
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\[[^]]*\])?\+?=")
ANSI_STRING = re.compile(r"\$'(?:[^'\\]|\\.)*'?", re.DOTALL)
FUNCTION_HEAD = re.compile(r"\(\s*\)")
REDIRECTION = re.compile(r"<<<|<<-|<<|<&|<>|<|>>|>&|>\||>|&>>|&>")


@dataclass(frozen=True)
class Word:
    start: int
    end: int
    value: str  # without its quotes; substitutions stay as they are written


@dataclass
class Command:
    words: list[Word] = field(default_factory=list)
    piped: bool = False  # its input is another command's output
    reads: bool = False  # its input is redirected
    end: int = 0  # after its last word or redirection

    def arguments(self) -> list[str]:
        """Its words from the command's name on: without `then`, `!`, `A=1` and the like before it."""
        values = [word.value for word in self.words]
        while values and (values[0] in RESERVED or ASSIGNMENT.match(values[0])):
            values = values[1:]
        return values


@dataclass
class HereDocument:
    start: int  # of the operator; where it belongs if the writer left it out
    end: int
    delimiter: str
    block: bool  # text of one of BLOCKS
    implied: bool = False  # no operator is there
    tabs: bool = False  # `<<-`
    literal: bool = True  # a quoted delimiter: nothing in it is expanded
    body_start: int = 0
    body_end: int = 0
    closed: bool = False
    stop: int = 0  # end of the closing line

    def closes(self, line: str) -> bool:
        if self.block:  # a marker with blanks around it is meant as one
            return line.strip() == self.delimiter
        return (line.lstrip("\t") if self.tabs else line) == self.delimiter


@dataclass(frozen=True)
class Reading:
    commands: tuple[Command, ...] = ()
    documents: tuple[HereDocument, ...] = ()


def read(text: str) -> Reading:
    reader = _Reader(text)
    try:
        reader.read_commands(until="")
        reader.read_bodies()
    except RecursionError:  # hundreds of nested substitutions: nobody's real command
        return Reading()
    return Reading(tuple(reader.commands), tuple(reader.documents))


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.commands: list[Command] = []
        self.documents: list[HereDocument] = []
        self.pending: list[HereDocument] = []  # their text begins after the current line
        self.current = Command()
        self.cases = 0  # open `case` words at this depth
        self.untils: list[str] = []

    def read_commands(self, until: str) -> None:
        """Up to `until` (")" or a backquote), which is consumed, or to the end."""
        outer, self.current = self.current, Command()
        cases, self.cases = self.cases, 0
        self.untils.append(until)
        while self.at < len(self.text) and not self._step(until):
            pass
        self._finish()
        self.untils.pop()
        self.current, self.cases = outer, cases

    def _step(self, until: str) -> bool:
        """Reads one thing; True if it was the end of this level."""
        text, at = self.text, self.at
        sign = text[at]
        if sign == until == "`":
            self.at += 1
            return True
        if sign == ")":
            return self._close(until)
        if sign in " \t" or text.startswith("\\\n", at):
            self.at += 1 if sign in " \t" else 2
        elif sign == "\n":
            self._finish()
            self.at += 1
            self.read_bodies()
        elif sign == "#":
            self.at = self._find("\n", at)
        elif text.startswith(("<(", ">("), at):
            self._nested(2, ")")
            self._add(at)
        elif sign in "<>" or text.startswith("&>", at):
            self._redirection()
        elif sign in ";&|":
            self._finish(piped=sign == "|" and not text.startswith("||", at))
            self.at += 2 if text.startswith(("||", "&&", ";;", "|&"), at) else 1
        elif sign == "(":
            self._parenthesis()
        else:
            self._add(at, self._word())
        return False

    def _close(self, until: str) -> bool:
        """At a ")": whether it ends this level. Otherwise it ends a pattern of `case`."""
        first = self.current.words[0].value if self.current.words else ""
        if first == "esac":
            self._finish()
        self.at += 1
        self.cases += first == "case"
        if until == ")" and not self.cases:
            return True
        self.current = Command()
        return False

    def _finish(self, piped: bool = False) -> None:
        command, self.current = self.current, Command(piped=piped)
        if not command.words:
            return
        self.commands.append(command)
        self.cases += {"case": 1, "esac": -1 if self.cases else 0}.get(command.words[0].value, 0)
        marker = BLOCKS.get(next(iter(command.arguments()), ""))
        if marker and not (command.reads or command.piped):
            self.pending.append(HereDocument(command.end, command.end, marker, block=True, implied=True))

    def _add(self, start: int, value: str | None = None) -> None:
        shown = self.text[start : self.at] if value is None else value
        self.current.words.append(Word(start, self.at, shown))
        self.current.end = self.at

    def _parenthesis(self) -> None:
        words, at = self.current.words, self.at
        if self.text.startswith("((", at) and (not words or words[-1].value == "for"):
            self._balanced("(", ")")
        elif words and words[-1].end == at and self.text[at - 1] in "=?*+@!":  # an array or a pattern: no commands
            commands, pending = list(self.commands), list(self.pending)
            self._nested(1, ")")
            self.commands, self.pending = commands, pending
            self.current.end = self.at
        elif words and (head := FUNCTION_HEAD.match(self.text, at)):  # the head of a function
            self.current = Command()
            self.at = head.end()
        elif self._before_pattern():
            self.at += 1
        else:
            self._finish()
            self._nested(1, ")")

    def _before_pattern(self) -> bool:
        """Whether a "(" here may begin a pattern of `case` rather than a subshell."""
        words = self.current.words
        if words and words[0].value == "case":
            return words[-1].value == "in"
        return self.cases > 0 and self.text[max(0, self.at - 80) : self.at].rstrip().endswith(";;")

    def _redirection(self) -> None:
        start = self.at
        match = REDIRECTION.match(self.text, start)
        assert match
        operator, self.at = match.group(), match.end()
        words = self.current.words
        number = ""
        if words and words[-1].end == start and words[-1].value.isdigit():
            number = words.pop().value
        while self.text.startswith((" ", "\t"), self.at):
            self.at += 1
        target_start = self.at
        target = self._word() if self.text[self.at : self.at + 1] not in BREAKS else ""
        self.current.end = self.at
        if operator.startswith("<") and number in ("", "0"):
            self.current.reads = True
        if operator in ("<<", "<<-") and self.at > target_start:
            name = next(iter(self.current.arguments()), "")
            literal = self.text[target_start : self.at] != target
            block = BLOCKS.get(name) == target
            document = HereDocument(start, self.at, target, block, tabs=operator == "<<-", literal=literal or block)
            self.pending.append(document)

    def read_bodies(self) -> None:
        for document in self.pending:
            document.body_start = self.at
            joined = False  # to the line before, by a backslash at its end
            while self.at < len(self.text) and not document.closed:
                start, end = self.at, self._find("\n", self.at)
                line = self.text[start:end]
                if not joined and document.closes(line):
                    document.body_end, document.stop, document.closed = start, end, True
                trailing = len(line) - len(line.rstrip("\\"))
                joined = not document.literal and trailing % 2 == 1
                self.at = min(end + 1, len(self.text))
            self.documents.append(document)
        self.pending = []

    def _word(self) -> str:
        value: list[str] = []
        while self.at < len(self.text) and (sign := self.text[self.at]) not in BREAKS:
            if sign == "`" and self.untils[-1] == "`":
                break
            start = self.at
            if sign == "\\":
                self.at = min(start + 2, len(self.text))
                value.append(self.text[start + 1 : self.at].replace("\n", ""))
            elif sign == "'":
                self.at = self._find("'", start + 1) + 1
                value.append(self.text[start + 1 : self.at - 1])
            elif sign == '"':
                self._double_quoted()
                value.append(re.sub(r'\\([$`"\\\n])', r"\1", self.text[start + 1 : self.at - 1]))
            elif not self._substitution():
                self.at += 1
                value.append(sign)
            else:
                value.append(self.text[start : self.at])
        self.at = min(self.at, len(self.text))
        return "".join(value)

    def _substitution(self, quoted: bool = False) -> bool:
        """Consumes what begins with $ or a backquote here, if it is more than that sign."""
        text, at = self.text, self.at
        if text.startswith("$((", at):
            self.at += 1
            self._balanced("(", ")")
        elif text.startswith("$(", at):
            self._nested(2, ")")
        elif text.startswith("${", at):
            self.at += 1
            self._balanced("{", "}", quoted)
        elif not quoted and (string := ANSI_STRING.match(text, at)):
            self.at = string.end()
        elif text.startswith("`", at):
            self._nested(1, "`")
        else:
            return False
        return True

    def _double_quoted(self) -> None:
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != '"':
            if self.text[self.at] == "\\":
                self.at += 2
            elif not self._substitution(quoted=True):
                self.at += 1
        self.at += 1

    def _nested(self, skip: int, until: str) -> None:
        self.at += skip
        self.read_commands(until)

    def _balanced(self, opening: str, closing: str, quoted: bool = False) -> None:
        """Past the sign that closes the one here. Inside double quotes a single quote is just a sign."""
        depth = 0
        while self.at < len(self.text):
            sign = self.text[self.at]
            if sign == '"':
                self._double_quoted()
                continue
            if sign == "'" and not quoted:
                self.at = self._find("'", self.at + 1)
            self.at += 2 if sign == "\\" else 1
            depth += (sign == opening) - (sign == closing)
            if depth == 0:
                return

    def _find(self, sign: str, start: int) -> int:
        found = self.text.find(sign, start)
        return len(self.text) if found < 0 else found
