"""The agent's file commands, run inside its sandbox: `tool.py FILE LINE WINDOW COMMAND [ARGUMENT...]`.

FILE and LINE are the open file and the first line shown; the new ones go to descriptor 3 as `LINE:FILE.`, and
what the agent reads to stdout or, if nothing was done, to stderr. Every call is a new process, so only what is
needed is imported: no dataclasses, no argparse, no re.
"""

from __future__ import annotations

import os
import stat
import sys

WINDOW = 1000
OVERLAP = 2  # lines seen again after scrolling
LONGEST_LINE = 2000  # characters shown of one line
LARGEST_FILE = 64 << 20
MOST_FOUND = 100  # lines or files listed by a search
MOST_ERRORS = 10
CONTEXT = 3  # lines shown around a refused edit
# Control characters as signs: on the way to the agent they would act (\r, \b), be lost, or count as a request.
VISIBLE = {code: 0x2400 + code for code in range(32) if code != 9} | {127: 0x2421}

USAGE = {
    "open": "open <path> [<line>] (quote a path with spaces)",
    "goto": "goto <line>",
    "scroll_up": "scroll_up",
    "scroll_down": "scroll_down",
    "create": "create <path> (quote a path with spaces)",
    "edit": "edit <start>:<end>, the new text on the next lines, then end_of_edit alone on a line",
    "insert": "insert <line>, the text on the next lines, then end_of_insert alone on a line",
    "search_dir": "search_dir <term> [<dir>] (quote a term with spaces)",
    "search_file": "search_file <term> [<file>] (quote a term with spaces)",
    "find_file": "find_file <name> [<dir>]",
}
ARGUMENTS = {  # fewest, most
    "open": (0, 2),
    "goto": (1, 1),
    "scroll_up": (0, 0),
    "scroll_down": (0, 0),
    "create": (1, 1),
    "edit": (1, 1),
    "insert": (1, 1),
    "search_dir": (1, 2),
    "search_file": (1, 2),
    "find_file": (1, 2),
}


class Refusal(Exception):
    """Why nothing was done."""


class Text:
    """A file's lines without their "\\n" (a "\\r" before it stays), and whether the last one had it."""

    def __init__(self, data: bytes) -> None:
        self.lines = data.split(b"\n")
        self.ended = self.lines[-1] == b""
        if self.ended:
            self.lines.pop()

    def data(self) -> bytes:
        return b"\n".join(self.lines) + (b"\n" if self.ended and self.lines else b"")

    def replaced(self, start: int, end: int, new: list[bytes]) -> Text:
        """A copy in which `new` stands for the lines start..end, written with the file's own line ends."""
        lines, ended = list(self.lines), self.ended
        whole = lines if ended else lines[:-1]
        if 2 * sum(line.endswith(b"\r") for line in whole) > len(whole):
            new = [line if line.endswith(b"\r") else line + b"\r" for line in new]
            if not ended and start > len(lines):
                lines[-1] += b"\r"
        touches_last = end >= len(lines)
        lines[start - 1 : end] = new
        changed = Text(b"")
        changed.lines, changed.ended = lines, ended or touches_last
        return changed


class View:
    """The open file and the part of it that is shown."""

    def __init__(self, path: str, top: str, window: str) -> None:
        self.path = path
        self.top = int(top) if _is_number(top) else 1
        self.window = max(1, int(window)) if _is_number(window) else WINDOW

    def text(self) -> Text:
        if not self.path:
            raise Refusal("No file is open. Open one with: open <path>")
        return Text(read(self.path))

    def around(self, line: int, total: int) -> None:
        """Lets the window begin a little before `line`, without leaving it empty at the file's end."""
        self.top = line - self.window // 6
        self.clamp(total)

    def clamp(self, total: int) -> None:
        self.top = max(1, min(self.top, total - self.window + 1))

    def show(self, text: Text) -> str:
        total = len(text.lines)
        self.clamp(total)
        last = min(total, self.top + self.window - 1)
        parts = [f"[File: {shown_path(self.path)} ({total} lines total)]"]
        if self.top > 1:
            parts.append(f"({self.top - 1} more above)")
        parts += numbered(text.lines, self.top, last)
        if last < total:
            parts.append(f"({total - last} more below)")
        if total == 0:
            parts.append("(empty)")
        return "\n".join(parts)

    def state(self) -> bytes:
        return b"%d:%s." % (self.top, os.fsencode(self.path))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def number(text: str, command: str) -> int:
    if not _is_number(text):
        raise Refusal(f"{shown(text)} is not a line number. Usage: {USAGE[command]}")
    return int(text)


def shown(text: str | bytes) -> str:
    if isinstance(text, bytes):
        text = text.removesuffix(b"\r").decode("utf-8", "replace")
    if len(text) > LONGEST_LINE:
        text = f"{text[:LONGEST_LINE]}… [{len(text) - LONGEST_LINE} more characters in this line]"
    return text.translate(VISIBLE)


def shown_path(path: str) -> str:
    return shown(os.fsencode(path).decode("utf-8", "replace"))


def numbered(lines: list[bytes], first: int, last: int) -> list[str]:
    return [f"{place}:{shown(lines[place - 1])}" for place in range(first, last + 1)]


def read(path: str) -> bytes:
    found = os.stat(path)
    name = shown_path(path)
    if stat.S_ISDIR(found.st_mode):
        raise Refusal(f"{name} is a directory. Look into it with: ls")
    if not stat.S_ISREG(found.st_mode):
        raise Refusal(f"{name} is not a regular file.")
    if found.st_size > LARGEST_FILE:
        raise Refusal(f"{name} has {found.st_size >> 20} MB, too much to open. Use head, tail, sed -n or grep.")
    with open(path, "rb") as file:
        data = file.read()
    if b"\0" in data:
        raise Refusal(f"{name} is a binary file ({len(data)} bytes) and cannot be shown or edited as text.")
    return data


def write(path: str, new: bytes, old: bytes) -> None:
    """In place, so that links and modes stay. Nothing is cut off before all is written, so that on a full
    disk the old text still has its room and is put back."""
    with open(path, "r+b", buffering=0) as file:
        try:
            _write_all(file.fileno(), new)
            file.truncate(len(new))
        except OSError:
            file.seek(0)
            _write_all(file.fileno(), old)
            file.truncate(len(old))
            raise


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def open_file(view: View, arguments: list[str]) -> str:
    if not arguments:
        return view.show(view.text())
    path = os.path.abspath(arguments[0])
    line = number(arguments[1], "open") if len(arguments) > 1 else 1
    if not os.path.exists(path):
        raise Refusal(f"{shown_path(path)} does not exist. Make it with: create <path>")
    text = Text(read(path))
    view.path = path
    view.around(line, len(text.lines))
    note = f"\n(there is no line {line}: this is the end)" if line > max(1, len(text.lines)) else ""
    return view.show(text) + note


def goto(view: View, arguments: list[str]) -> str:
    text, line = view.text(), number(arguments[0], "goto")
    if not 1 <= line <= max(1, len(text.lines)):
        raise Refusal(f"There is no line {line}: {shown_path(view.path)} has lines 1 to {len(text.lines)}.")
    view.around(line, len(text.lines))
    return view.show(text)


def scroll(view: View, direction: int) -> str:
    text = view.text()
    view.clamp(len(text.lines))
    before = view.top
    view.top += direction * max(1, view.window - OVERLAP)
    view.clamp(len(text.lines))
    if view.top == before:
        raise Refusal(f"Already at the {'end' if direction > 0 else 'beginning'} of {shown_path(view.path)}.")
    return view.show(text)


def create(view: View, arguments: list[str]) -> str:
    path = os.path.abspath(arguments[0])
    if os.path.lexists(path):
        raise Refusal(f"{shown_path(path)} exists already. Open it with: open <path>")
    if not os.path.isdir(os.path.dirname(path)):
        raise Refusal(f"There is no directory {shown_path(os.path.dirname(path))}. Make it with: mkdir -p")
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    view.path, view.top = path, 1
    return view.show(Text(b""))


def edit(view: View, arguments: list[str]) -> str:
    first, _, last = arguments[0].partition(":")
    start, end = number(first, "edit"), number(last, "edit")
    text = view.text()
    total = len(text.lines)
    name = shown_path(view.path)
    if start < 1 or start > max(1, total):
        raise Refusal(f"There is no line {start}: {name} has lines 1 to {total}. To add at the end: insert {total}")
    if end < start:
        raise Refusal(f"{start}:{end} is no range: the end is before the start. To add lines: insert {start - 1}")
    return change(view, text, start, min(end, total), "edit")


def insert(view: View, arguments: list[str]) -> str:
    text, line = view.text(), number(arguments[0], "insert")
    if line > len(text.lines):
        raise Refusal(f"There is no line {line}: {shown_path(view.path)} has {len(text.lines)}. 0 is the beginning.")
    return change(view, text, line + 1, line, "insert")


def change(view: View, text: Text, start: int, end: int, command: str) -> str:
    """Replaces the lines start..end (none if end is before start) by what stands on stdin."""
    mode = os.stat(view.path).st_mode
    if not mode & 0o222 or not os.access(view.path, os.W_OK):  # the superuser may write all; here nobody should
        raise Refusal(f"{shown_path(view.path)} is read-only and was not changed.")
    if stat.S_ISCHR(os.fstat(0).st_mode):  # a terminal or /dev/null: an empty text would silently delete lines
        raise Refusal(f"No text was given. Usage: {USAGE[command]}")
    new = Text(sys.stdin.buffer.read()).lines
    if not new and command == "insert":
        raise Refusal("There was no text to insert.")
    if any(b"\0" in line for line in new):
        raise Refusal("The text holds a zero byte and was not written.")
    changed = text.replaced(start, end, new)
    if view.path.endswith(".py"):
        check(text, changed, start, end, len(new), command)
    write(view.path, changed.data(), text.data())
    if not view.top <= start < view.top + view.window:
        view.around(start, len(changed.lines))
    count = f"{len(new)} line{'s' * (len(new) != 1)}"
    done = f"(inserted {count} after line {end})" if end < start else f"(replaced lines {start}:{end} by {count})"
    return f"{view.show(changed)}\n{done}"


def check(old: Text, changed: Text, start: int, end: int, added: int, command: str) -> None:
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from lint import new_errors

    errors = new_errors(old.data(), changed.data(), start, end - start + 1, added)
    if not errors:
        return
    parts = [f"Not applied: this {command} would bring new errors into the file:"]
    parts += [f"- line {line}: {code} {shown(message)}" for line, code, message in errors[:MOST_ERRORS]]
    if len(errors) > MOST_ERRORS:
        parts.append(f"- and {len(errors) - MOST_ERRORS} more")
    parts += ["It would have been:", *excerpt(changed.lines, start, start + added - 1)]
    parts += ["It still is:", *excerpt(old.lines, start, end)]
    parts.append(f"Do not repeat the same {command}; correct the line numbers, the indentation or the text first.")
    raise Refusal("\n".join(parts))


def excerpt(lines: list[bytes], start: int, end: int) -> list[str]:
    first, last = max(1, start - CONTEXT), min(len(lines), max(start, end) + CONTEXT)
    if last - first < MOST_FOUND:
        return numbered(lines, first, last) or ["(empty)"]
    half = MOST_FOUND // 2
    left_out = f"({last - first + 1 - 2 * half} lines left out)"
    return [*numbered(lines, first, first + half - 1), left_out, *numbered(lines, last - half + 1, last)]


def search_file(view: View, arguments: list[str]) -> str:
    term = os.fsencode(arguments[0])
    path = os.path.abspath(arguments[1]) if len(arguments) > 1 else view.path
    if not path:
        raise Refusal(f"No file is open. Usage: {USAGE['search_file']}")
    lines = Text(read(path)).lines
    found = [place for place, line in enumerate(lines, 1) if term in line]
    name = shown_path(path)
    if not found:
        raise Refusal(f"{shown(term)} does not occur in {name}.")
    parts = [f"{len(found)} line{'s' * (len(found) != 1)} in {name}:"]
    parts += [line for place in found[:MOST_FOUND] for line in numbered(lines, place, place)]
    return "\n".join(parts + more(len(found)))


def more(count: int) -> list[str]:
    return [f"({count - MOST_FOUND} more; narrow the search)"] if count > MOST_FOUND else []


def walk(directory: str) -> list[str]:
    """Regular files below it, without hidden ones, sorted, as paths from here if they lie below."""
    if not os.path.isdir(directory):
        raise Refusal(f"{shown_path(directory)} is not a directory.")
    found = []
    for folder, folders, names in os.walk(directory):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = (os.path.normpath(os.path.join(folder, name)) for name in names if not name.startswith("."))
        found += [path for path in paths if os.path.isfile(path)]
    return sorted(found)


def search_dir(view: View, arguments: list[str]) -> str:
    term, directory = os.fsencode(arguments[0]), arguments[1] if len(arguments) > 1 else "."
    found, skipped = [], 0
    for path in walk(directory):
        try:
            count = sum(term in line for line in read(path).split(b"\n"))
        except (Refusal, OSError):  # binary, too large, unreadable
            skipped += 1
            continue
        if count:
            found.append(f"{shown_path(path)} ({count} line{'s' * (count != 1)})")
    note = [f"({skipped} binary, very large or unreadable files were not searched)"] if skipped else []
    if not found:
        raise Refusal("\n".join([f"{shown(term)} does not occur in {shown_path(directory)}.", *note]))
    return "\n".join([f"{shown(term)} occurs in:", *found[:MOST_FOUND], *more(len(found)), *note])


def find_file(view: View, arguments: list[str]) -> str:
    import fnmatch

    pattern, directory = arguments[0], arguments[1] if len(arguments) > 1 else "."
    found = [path for path in walk(directory) if fnmatch.fnmatchcase(os.path.basename(path), pattern)]
    if not found:
        raise Refusal(f"There is no file {shown_path(pattern)} in {shown_path(directory)}.")
    return "\n".join([shown_path(path) for path in found[:MOST_FOUND]] + more(len(found)))


COMMANDS = {
    "open": open_file,
    "goto": goto,
    "scroll_up": lambda view, arguments: scroll(view, -1),
    "scroll_down": lambda view, arguments: scroll(view, 1),
    "create": create,
    "edit": edit,
    "insert": insert,
    "search_dir": search_dir,
    "search_file": search_file,
    "find_file": find_file,
}


def main(path: str, top: str, window: str, command: str, *arguments: str) -> int:
    view = View(path, top, window)
    fewest, most = ARGUMENTS[command]
    try:
        if not fewest <= len(arguments) <= most or "" in arguments:
            raise Refusal(f"Usage: {USAGE[command]}")
        output = COMMANDS[command](view, list(arguments))
    except Refusal as refusal:
        problem = str(refusal)
    except OSError as error:
        problem = f"{command}: {error.strerror}: {shown_path(str(error.filename or view.path))}"
    else:
        _write_all(3, view.state())
        _write_all(1, f"{output}\n".encode("utf-8", "replace"))
        return 0
    _write_all(2, f"{problem}\n".encode("utf-8", "replace"))
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except BrokenPipeError:  # `open train.py | head`
        sys.exit(0)
