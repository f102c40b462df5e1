"""Files that an agent wrote, worked out from its commands and what it was shown."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airloop_view.diffs import Change, Workspace


def turn(command: str, shown: str = "", failed: bool = False) -> dict[str, Any]:
    return {
        "actions": [{"kind": "command", "name": "", "text": command, "arguments": {}}],
        "observations": [{"text": shown, "failed": failed}],
    }


def call(**arguments: Any) -> dict[str, Any]:
    return {"actions": [{"kind": "tool", "name": "write", "text": "", "arguments": arguments}], "observations": []}


def changes(*turns: dict[str, Any]) -> list[Change]:
    workspace = Workspace()
    return [change for one in turns for change in workspace.after(one)]


def lines(change: Change) -> list[str]:
    return [line for line in change.diff.splitlines() if not line.startswith(("---", "+++", "@@"))]


def test_a_here_document_writes_a_file_and_another_changes_it() -> None:
    first, second = changes(
        turn("mkdir -p src && cat > src/a.py <<'EOF'\nx = 1\ny = 2\nEOF\npython src/a.py"),
        turn("cat <<EOF > src/a.py\nx = 1\ny = 3\nEOF"),
    )
    assert first.path == "src/a.py" and lines(first) == ["+x = 1", "+y = 2"] and "not known" in first.note
    assert lines(second) == [" x = 1", "-y = 2", "+y = 3"] and second.note == ""


def test_what_is_appended() -> None:
    unknown, _, added = changes(
        turn("cat >> log.txt << 'E'\nmore\nE"),
        turn("cat > b.txt <<E\none\nE"),
        turn("tee -a b.txt <<E\ntwo\nE"),
    )
    assert lines(unknown) == ["+more"] and "appended" in unknown.note
    assert lines(added) == [" one", "+two"]


@pytest.mark.parametrize("opened", ["open train.py", "open /home/agent/train.py 1"])
def test_edits_of_an_open_file(opened: str) -> None:
    path = opened.split()[1]
    view = f"[File: {path} (3 lines total)]\n1:import os\n2:a = 1\n3:print(a)\n(Open file: n/a)"
    after = f"[File: {path} (4 lines total)]\n1:import os\n2:a = 2\n3:b = 3\n4:print(a)\n(replaced lines 2:2)"
    edited, inserted = changes(
        turn(opened, view),
        turn("edit 2:2\na = 2\nb = 3\nend_of_edit", after),
        turn("insert 4\n# the end\nend_of_insert", "ok"),
    )
    assert edited.path == path
    assert lines(edited) == [" import os", "-a = 1", "+a = 2", "+b = 3", " print(a)"] and not edited.note
    assert lines(inserted) == [" a = 2", " b = 3", " print(a)", "+# the end"]


def test_a_new_file_and_its_first_lines() -> None:
    made, filled = changes(
        turn("create new.py", "[File: new.py (0 lines total)]\n(empty)"), turn("edit 1:1\nx\nend_of_edit")
    )
    assert (made.path, made.diff, made.note) == ("new.py", "", "created, empty") and lines(filled) == ["+x"]


def test_what_was_refused_changed_nothing() -> None:
    view = "[File: a.py (1 lines total)]\n1:x = 1"
    assert changes(turn("open a.py", view), turn("edit 1:1\nx = (\nend_of_edit", "Not applied: errors", True)) == []
    assert changes(turn("edit 1:1\nnever closed", "Nothing was run: `edit` needs", True)) == []
    assert changes(turn("cat > a <<EOF\nnever closed")) == []


def test_a_line_that_was_never_shown_is_said_to_be_unknown() -> None:
    view = "[File: big.py (900 lines total)]\n1:first\n2:second"
    (change,) = changes(turn("open big.py", view), turn("edit 500:501\nnew\nend_of_edit"))
    assert lines(change) == ["+new"] and change.note == "2 of the lines that were replaced were never shown"


def test_tools_that_write() -> None:
    first, second, third = changes(
        call(path="a.py", content="x = 1\ny = 2\n"),
        call(path="./a.py", old_str="y = 2", new_str="y = 3"),
        call(file_path="b.py", old_str="q", new_str="r"),
    )
    assert lines(first) == ["+x = 1", "+y = 2"] and lines(second) == [" x = 1", "-y = 2", "+y = 3"]
    assert lines(third) == ["-q", "+r"] and third.note == "a part of the file"
    assert changes(call(code="print(1)"), call(path=3, content="x"), call(path="a")) == []


def test_other_commands_write_nothing_that_is_known() -> None:
    quiet = (
        "ls -l",
        "python - <<'E'\nprint(1)\nE",
        "echo hi > a.txt",
        "grep x << E\nE",
        "cat a.txt",
        "cat <<E\nx\nE",
        "edit",
    )
    assert [c for command in quiet for c in changes(turn(command))] == []


@given(st.lists(st.tuples(st.text(max_size=60), st.text(max_size=60)), max_size=4))
def test_any_command_is_taken(pairs: list[tuple[str, str]]) -> None:
    changes(*(turn(command, shown) for command, shown in pairs))
    changes(*(turn(f"open a\ncat > {c} <<E\n{s}\nE\nedit 1:2\n{s}\nend_of_edit", s) for c, s in pairs))
