"""Which errors an edit brings into a Python file: those of flake8 that mean it cannot work.

E999 and E902 (it cannot be read), F821, F822, F831 (pyflakes), E111-E113 (pycodestyle). Where these are not
installed, E999 and E902 alone are found. pyflakes and pycodestyle are called directly: flake8 itself would
add 60 ms to every edit, and would read settings the agent can write.
"""

from __future__ import annotations

import ast
import os
import re
import site
from collections import Counter

Error = tuple[int, str, str]  # line, code, message

UNREADABLE = ("E999", "E902")
PYFLAKES = {"UndefinedName": "F821", "UndefinedExport": "F822", "DuplicateArgument": "F831"}
INDENTATION = ("E111", "E112", "E113")
NOQA = re.compile(r"#\s*noqa(?::\s*(?P<codes>[A-Z]\d+(?:[,\s]+[A-Z]\d+)*))?", re.IGNORECASE)


def new_errors(before: bytes, after: bytes, start: int, removed: int, added: int) -> list[Error]:
    """Errors in `after` that the change brought in: from line `start` on, `removed` lines became `added` ones."""
    found = errors(after)
    if not found:
        return []
    known = errors(before)
    inside = range(start, start + added)
    if any(code in UNREADABLE for _, code, _ in known):
        # What the old error hid is nobody's fault now: only the new lines themselves can be blamed.
        return [error for error in found if error[0] in inside]

    def place(line: int, first: int, length: int, shift: int) -> int:
        return 0 if first <= line < first + length else line + shift if line >= first + length else line

    old = Counter((place(line, start, removed, added - removed), code, text) for line, code, text in known)
    indented_so = {code for _, code, _ in known} & set(INDENTATION)  # the file's own style
    new = []
    for line, code, text in found:
        key = (place(line, start, added, 0), code, text)
        if old[key]:
            old[key] -= 1
        elif code not in indented_so:
            new.append((line, code, text))
    return new


def errors(source: bytes) -> list[Error]:
    try:
        tree = compile(source, "file", "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    except SyntaxError as error:
        message = error.msg or "invalid syntax"
        code = "E902" if re.search("unicode error|encoding", message) else "E999"
        return [(error.lineno or 1, code, f"{type(error).__name__}: {message}")]
    except (ValueError, RecursionError, MemoryError) as error:
        return [(1, "E902", f"{type(error).__name__}: {error}")]
    lines = source.decode("utf-8", "replace").split("\n")
    found = [*_names(tree), *_indentation(lines)] if _find_packages() else []
    return sorted(error for error in found if not _silenced(error, lines))


def _find_packages() -> bool:
    """tool.py starts Python without its site-packages, because that takes half the time."""
    try:
        import pyflakes
    except ImportError:
        site.main()
    try:
        import pycodestyle  # noqa: F401
        import pyflakes.checker  # noqa: F401
    except ImportError:
        return False
    return True


def _names(tree: ast.AST) -> list[Error]:
    from pyflakes.checker import Checker

    os.environ.pop("PYFLAKES_DOCTEST", None)
    try:
        messages = Checker(tree, filename="file").messages
    except RecursionError:
        return []
    return [
        (message.lineno, PYFLAKES[type(message).__name__], message.message % message.message_args)
        for message in messages
        if type(message).__name__ in PYFLAKES
    ]


def _indentation(lines: list[str]) -> list[Error]:
    import pycodestyle

    found: list[Error] = []

    class Report(pycodestyle.BaseReport):
        def error(self, line_number: int, offset: int, text: str, check: object) -> None:
            code, _, message = text.partition(" ")
            if code in INDENTATION:
                found.append((line_number, code, message))

    style = pycodestyle.StyleGuide(select=list(INDENTATION), reporter=Report, parse_argv=False, config_file=False)
    ended = [f"{line}\n" for line in lines[:-1]] + [line for line in lines[-1:] if line]
    pycodestyle.Checker("file", lines=ended, options=style.options).check_all()
    return found


def _silenced(error: Error, lines: list[str]) -> bool:
    line, code, _ = error
    match = NOQA.search(lines[line - 1]) if line <= len(lines) else None
    if match is None:
        return False
    codes = match.group("codes")
    return codes is None or any(code.startswith(each.upper()) for each in re.split(r"[,\s]+", codes))
