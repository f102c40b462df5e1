"""air log: what a person sees and writes, over runs that were really made."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.tiny_runs import tiny_run, write_config

from airloop.config import load_config
from airloop.errors import AirError
from airloop.eval.baselines import find_baselines, format_baselines, grouped
from airloop.eval.evaluate import EvalOptions, evaluate
from airloop.logbook.log_export import cut_paths
from airloop.logbook.logbook import choose_run, find_runs, logbook, supersede
from airloop.runs.damaged import Reader
from airloop.runs.entries import add_entry, read_entries
from airloop.runs.run import Run
from airloop.text.figures import columns, duration, fitted, memory, money, plain, trend
from airloop.training import start
from airloop.watch.display.display import Display


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A finished run, one that followed it with other settings, a planned one and one that was killed."""
    root = tmp_path_factory.mktemp("book") / "outputs"
    shutil.copytree(tiny_run(), root / "exp1.0-arith-1115")
    changes = ["--trainer.optim.lr", "2e-2", "--logbook.goal", "A larger step", "--logbook.price_per_hour", "3600"]
    flags = ["@", str(write_config(root.parent)), "--output_dir", str(root)]
    start(load_config([*flags, "--max_steps", "1", *changes]), Display(quiet=True), skip_proofs=True)
    Run.create(load_config([*flags, "--logbook.goal", "for later"]), "arith", planned=True)
    Run.create(load_config(flags), "other").close()
    yield root


@pytest.fixture
def own(book: Path, tmp_path: Path) -> Path:
    """The same, to write in."""
    return Path(shutil.copytree(book, tmp_path / "outputs"))


def run_named(root: Path, number: str) -> Path:
    return next(root.glob(f"exp{number}-*"))


def in_a_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(width))


@pytest.mark.slow
def test_every_run_enters_by_itself(air: Any, book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_terminal(monkeypatch, 100)
    code, out, _ = air("log", "list", "--dir", book)
    assert code == 0
    lines = out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("exp")] == [
        run_named(book, number).name for number in ("1.0", "1.1", "1.3", "1.2")
    ]
    one, two, killed, planned = (line for line in lines if line.startswith("exp"))
    assert "completed" in one and "2/2" in one and "completed" in two and "1/1" in two
    assert "killed" in killed and "planned" in planned
    assert "    A larger step" in lines and "    for later" in lines
    assert lines[-1].startswith("4 runs: 2 completed, 1 killed, 1 planned; cost ")
    assert all(columns(line) <= 100 for line in lines)
    code, out, _ = air("log", "list", "--dir", book, "--json", "--status", "planned")
    assert [row["goal"] for row in json.loads(out)] == ["for later"]
    code, _, errors = air("log", "list", "--dir", book, "--status", "runing")
    assert code == 1 and "no status of a run" in errors and "killed" in errors


def test_a_narrow_terminal_is_not_overrun(air: Any, book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_terminal(monkeypatch, 60)
    listed = air("log", "list", "--dir", book)[1].splitlines()
    assert all(columns(line) <= 60 for line in listed)
    done = next(line for line in listed if line.startswith("exp1.1-"))
    assert "completed" in done and " → " in done  # results are the last to go
    shown = air("log", "show", "1.1", "--dir", book)[1].splitlines()
    assert all(columns(line) <= 60 for line in shown if str(book) not in line)  # what one copies stays whole


def test_a_pipe_cuts_nothing(air: Any, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads a file cannot make it wider; COLUMNS, which some shells hand on, changes nothing of that."""
    goal = "whether " + "a long goal that no terminal shows in one line is kept whole " * 5
    assert air("log", "goal", "1.1", goal, "--dir", own)[0] == 0
    monkeypatch.setenv("COLUMNS", "60")
    out = air("log", "list", "--dir", own)[1]
    assert "…" not in out and f"    {goal.strip()}" in out.splitlines()
    row = next(line for line in out.splitlines() if line.startswith("exp1.1-"))
    assert "completed" in row and " → " in row and re.search(r"\d+ s\b", row) and re.search(r"\d+\.\d\d", row)
    assert "…" not in air("log", "show", "1.1", "--dir", own)[1]


def test_a_full_fine_tuning_run_lists_no_keys_of_an_adapter(air: Any, own: Path) -> None:
    parent = run_named(own, "1.0").name
    flags = ["@", str(write_config(own.parent)), "--output_dir", str(own), "--logbook.parent", parent]
    full = Run.create(load_config([*flags, "--trainer.model.train", "full"]), "arith", planned=True)
    out = air("log", "show", full.path)[1]
    assert re.search(r'^\* trainer\.model\.train +"?full', out, re.M) and "lora." not in out
    page = json.loads(air("log", "show", full.path, "--json")[1])
    assert not [row for row in page["config"] if row["key"].startswith("trainer.model.lora")]
    flags[-1] = full.name
    back = Run.create(load_config(flags), "arith", planned=True)  # its adapter is a thing that its parent had not
    assert re.search(r"^\* trainer\.model\.lora\.rank +16 +\(was ", air("log", "show", back.path)[1], re.M)
    assert "trainer.model.lora.rank" in air("log", "show", "1.0", "--dir", own)[1]


def test_show_tells_what_changed_and_what_came_of_it(air: Any, book: Path) -> None:
    code, out, _ = air("log", "show", "1.1", "--dir", book)
    assert code == 0
    assert re.search(r"goal +A larger step", out) and re.search(r"parent +exp1\.0-arith-1115", out)
    assert re.search(r"^\* trainer\.optim\.lr +0\.02 +\(was 0\.01\)$", out, re.M)
    assert re.search(r"^\* max_steps +1 +\(was 2\)$", out, re.M) and re.search(r"^  seed +0$", out, re.M)
    assert re.search(r"steps +1 of 1", out) and re.search(r"held-out reward +\S+ \[", out)
    assert re.search(r"cost +\d+\.\d\d at 3600 an hour", out) and "tokens/s" in out and re.search(r"\d [MG]iB", out)
    assert "air compare" in out and "summary.txt" in out
    page = json.loads(air("log", "show", "1.1", "--dir", book, "--json")[1])
    assert {"key": "trainer.optim.lr", "here": 0.02, "parent": 0.01, "changed": True} in page["config"]
    planned = air("log", "show", "1.2", "--dir", book)[1]
    assert re.search(rf"start it +air train --resume\s+{run_named(book, '1.2')}", " ".join(planned.split()))


def test_a_run_is_found_by_number_name_path_and_last(book: Path) -> None:
    first = run_named(book, "1.0")
    for named in ("1.0", "exp1.0", first.name, str(first)):
        assert choose_run(named, book) == first
    assert choose_run("last", book) == run_named(book, "1.3")
    with pytest.raises(AirError, match=r"no run '7\.7'") as error:
        choose_run("7.7", book)
    assert first.name in error.value.fix
    with pytest.raises(AirError, match="--dir DIR"):
        choose_run("1.0", book / "nowhere")


def test_a_name_that_two_runs_share_is_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder / "exp1.0-arith-1115").mkdir(parents=True)
    with pytest.raises(AirError, match="2 runs"):
        choose_run("1.0", tmp_path)


# --- what people add ------------------------------------------------------------------------------------------


def test_notes_and_goals_are_kept_with_their_time(air: Any, own: Path) -> None:
    began = time.time()
    assert air("log", "note", "1.0", "Zwei Zeilen:\n\x1b[31mrot", "--dir", own)[0] == 0
    assert air("log", "goal", "1.0", "first", "--dir", own)[0] == 0
    code, out, _ = air("log", "goal", "1.0", "Is it enough?", "--dir", own, "--json")
    assert code == 0 and json.loads(out)["entry"]["kind"] == "goal"
    path = run_named(own, "1.0")
    entries = read_entries(Reader(path))
    assert [e.text for e in entries.notes] == ["Zwei Zeilen:\n\x1b[31mrot"] and entries.goal == "Is it enough?"
    assert began - 1 <= entries.notes[0].time <= time.time()
    out = air("log", "show", "1.0", "--dir", own)[1]
    assert "Is it enough?" in out and "Zwei Zeilen: [31mrot" in out and "\x1b" not in out
    code, _, errors = air("log", "note", "1.0", "  ", "--dir", own)
    assert code == 1 and "An empty note says nothing" in errors


def test_superseded_abandoned_archived_and_back(air: Any, own: Path) -> None:
    def status(number: str) -> str:
        return next(r["status"] for r in logbook(own) if r["name"].startswith(f"exp{number}-"))

    assert "superseded by" in air("log", "supersede", "1.0", "1.1", "--why", "too small", "--dir", own)[1]
    assert "superseded by exp1.1" in air("log", "list", "--dir", own)[1]
    code, _, errors = air("log", "supersede", "1.1", "1.0", "--dir", own)
    assert code == 1 and "would supersede each other" in errors
    assert "cannot supersede itself" in air("log", "supersede", "1.1", "1.1", "--dir", own)[2]
    assert "Which run takes its place" in air("log", "supersede", "1.1", "--dir", own)[2]
    assert air("log", "supersede", "1.0", "--undo", "--dir", own)[0] == 0 and status("1.0") == "completed"

    assert air("log", "abandon", "1.3", "--why", "it was killed", "--dir", own)[0] == 0
    assert air("log", "archive", "1.3", "--dir", own)[0] == 0
    out = air("log", "list", "--dir", own)[1]
    assert "exp1.3" not in out and "1 archived not shown (--all)" in out
    assert "exp1.3" in air("log", "list", "--all", "--dir", own)[1]
    code, _, errors = air("log", "abandon", "1.3", "--undo", "--dir", own)
    assert code == 1 and "not abandoned" in errors and "it is archived" in errors
    assert air("log", "archive", "1.3", "--undo", "--dir", own)[0] == 0 and status("1.3") == "abandoned"
    shown = air("log", "show", "1.3", "--dir", own)[1]
    assert "abandoned: it was killed" in shown and "no longer archived" in shown


def test_a_run_that_is_started_again_is_not_abandoned_any_more(own: Path) -> None:
    path = run_named(own, "1.3")
    add_entry(path, "abandoned", "")
    run = Run.open(path)
    run.lock()
    run.set_status("running")
    assert next(r for r in logbook(own) if r["path"] == str(path))["status"] == "running"
    run.close()


def test_a_running_run_is_not_archived(air: Any, own: Path) -> None:
    run = Run.open(run_named(own, "1.3"))
    run.lock()
    code, _, errors = air("log", "archive", "1.3", "--dir", own)
    run.close()
    assert code == 1 and "is running" in errors


def test_a_supersession_in_a_circle_of_three_is_refused(own: Path) -> None:
    a, b, c = (run_named(own, number) for number in ("1.0", "1.1", "1.3"))
    supersede(a, b)
    supersede(b, c)
    with pytest.raises(AirError, match="supersede each other"):
        supersede(c, a)


def test_a_damaged_logbook_file_is_never_overwritten(air: Any, own: Path) -> None:
    path = run_named(own, "1.0") / "logbook.json"
    for text, said in (('{"entries": [', "not valid JSON"), ('{"schema_version": 99}', "newer air"), ("[]", "object")):
        path.write_text(text)
        code, _, errors = air("log", "note", "1.0", "x", "--dir", own)
        assert code == 1 and said in errors and "move it away" in errors and path.read_text() == text
        assert "exp1.0" in air("log", "list", "--dir", own)[1]


def test_notes_written_at_the_same_time_are_all_kept(own: Path) -> None:
    path = run_named(own, "1.0")
    script = f"""
from pathlib import Path
from airloop.runs.entries import add_entry
for i in range(15): add_entry(Path({str(path)!r}), "note", "p")
"""
    process = subprocess.Popen([sys.executable, "-c", script])
    threads = [threading.Thread(target=lambda: [add_entry(path, "note", "t") for _ in range(15)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert process.wait(60) == 0
    assert len(read_entries(Reader(path)).notes) == 45


def test_facts_noted_at_the_same_time_are_all_kept(own: Path) -> None:
    """Sinks note their link from threads of their own while the run notes its status."""
    run = Run.open(run_named(own, "1.0"))
    threads = [threading.Thread(target=lambda i=i: run.note(**{f"fact_{i}": i})) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {f"fact_{i}" for i in range(12)} <= run.status().keys()


# --- planned ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_planned_run_has_a_name_and_can_be_started(air: Any, tmp_path: Path) -> None:
    config = write_config(tmp_path)
    code, out, _ = air("log", "plan", "@", config, "--max_steps", "1", "--goal", "One step only", "--json")
    assert code == 0
    path = Path(json.loads(out)["run"])
    assert re.fullmatch(r"exp1\.0-arith-\d{4}", path.name) and json.loads(out)["goal"] == "One step only"
    row = logbook(tmp_path / "outputs")[0]
    assert (row["status"], row["started"], row["goal"], row["steps"]) == ("planned", None, "One step only", 0)
    assert f"air train --resume {str(path).replace('exp1.0', 'exp1.1')}" in air("log", "plan", "@", config)[1]
    finished = start(load_config([]), Display(quiet=True), resume=path, skip_proofs=True)
    assert finished.run.path == path
    row = logbook(tmp_path / "outputs")[0]
    assert (row["status"], row["steps"], row["goal"]) == ("completed", 1, "One step only")
    assert "starting exp1.0" in (path / "log.txt").read_text() and row["seconds"] > 0


def test_plan_refuses_what_train_refuses(air: Any, tmp_path: Path) -> None:
    code, _, errors = air("log", "plan", "@", write_config(tmp_path), "--logbook.parent", "nobody")
    assert code == 1 and "parent = 'nobody' is no run" in errors and "has no run yet" in errors
    code, _, errors = air("log", "plan", "@", write_config(tmp_path), "--max_stebs", "1")
    assert code == 1 and "max_steps" in errors
    assert not list((tmp_path / "outputs").glob("exp*"))
    code, out, _ = air("log", "plan", "--help")
    assert code == 0 and "[logbook]" in out and "price_per_hour" in out


# --- the file a team commits --------------------------------------------------------------------------------------


def test_the_same_runs_give_the_same_bytes_from_anywhere(
    air: Any, own: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    add_entry(run_named(own, "1.0"), "note", "a | b <script>alert(1)</script> [x](javascript:1) see /data/me/x")
    monkeypatch.chdir(tmp_path)
    assert air("log", "export", "--format", "md")[:2] == (0, "LOGBOOK.md: 4 runs, 0 evaluations\n")
    first = (tmp_path / "LOGBOOK.md").read_text()
    monkeypatch.chdir("/")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    assert air("log", "export", "--dir", own, "--out", tmp_path / "LOGBOOK.md")[0] == 0
    monkeypatch.undo()
    time.tzset()
    assert (tmp_path / "LOGBOOK.md").read_text() == first
    rows = [line for line in first.splitlines() if line.startswith("| [exp")]
    assert len(rows) == 4 and "A larger step" in rows[1]
    assert "| **`trainer.optim.lr`** | `0.02` | `0.01` |" in first and "**Goal.** A larger step" in first
    assert "<script" not in first.replace("\\<script", "") and "](javascript" not in first.replace("\\](", "")
    assert str(tmp_path) not in first and "/data/me/x" in first  # people's own words stay as they are
    links = re.findall(r"(?<!\\)\]\(([^#)][^)]*)\)", first)
    assert len(links) > 8 and all((tmp_path / link).exists() for link in links)
    anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", first, re.M)}
    assert {*re.findall(r"\]\(#([^)]*)\)", first)} <= anchors


def test_export_leaves_other_peoples_files_alone(air: Any, book: Path, tmp_path: Path) -> None:
    mine = tmp_path / "NOTES.md"
    mine.write_text("# My notes\n")
    code, _, errors = air("log", "export", "--dir", book, "--out", mine)
    assert code == 1 and "was not written by" in errors and mine.read_text() == "# My notes\n"
    assert "use md or json" in air("log", "export", "--dir", book, "--format", "html")[2]
    assert "is a directory" in air("log", "export", "--dir", book, "--out", tmp_path)[2]
    code, out, _ = air("log", "export", "--dir", book, "--out", "-")
    assert code == 0 and out.startswith("# Logbook\n")
    code, out, _ = air("log", "export", "--dir", book, "--out", tmp_path / "L.json", "--format", "json", "--json")
    assert code == 0 and json.loads(out)["runs"] == 4
    saved = (tmp_path / "L.json").read_text()
    assert str(book) not in saved and json.loads(saved)["runs"][1]["goal"] == "A larger step"


def test_paths_of_a_machine_are_cut() -> None:
    assert cut_paths("/home/me/models/qwen") == "…/qwen" and cut_paths("~/models/qwen/") == "…/qwen"
    assert cut_paths("it is in '/a/b c' or /x.") == "it is in '…/b c' or …/x."
    for kept in ("https://wandb.ai/team/x", "Qwen/Qwen3-4B", "tokens / s", "and/or", "../outputs/x"):
        assert cut_paths(kept) == kept


# --- damage and strangers -----------------------------------------------------------------------------------------


def test_damaged_and_foreign_runs_are_named_and_break_nothing(air: Any, own: Path) -> None:
    (run_named(own, "1.0") / "metrics.jsonl").write_text('{"kind": "train"\n{}\n')
    (run_named(own, "1.1") / "config.toml").unlink()
    (own / "exp7.0-strange-0101").mkdir()
    (own / "other-project").mkdir()
    (own / "other-project" / "config.toml").write_text("x = 1\n")
    (own / "loop").symlink_to(own)
    code, out, _ = air("log", "list", "--dir", own)
    assert code == 0
    assert "! metrics.jsonl: 1 line cannot be read" in out and out.count("! config.toml is missing") == 2
    assert "exp7.0-strange-0101  unknown" in out and "other-project" not in out and "5 runs" in out
    assert air("log", "export", "--dir", own, "--out", "-")[0] == 0
    assert "could not be read" in air("log", "show", "7.0", "--dir", own)[1]


def test_a_parent_that_was_deleted_is_still_named(air: Any, own: Path) -> None:
    shutil.rmtree(run_named(own, "1.0"))
    out = air("log", "show", "1.1", "--dir", own)[1]
    assert "exp1.0-arith-1115 (its directory is gone)" in out and "(was" not in out
    assert "- **Parent:** exp1.0-arith-1115\n" in air("log", "export", "--dir", own, "--out", "-")[1]


def test_runs_are_found_in_folders_below(tmp_path: Path, book: Path) -> None:
    shutil.copytree(run_named(book, "1.0"), tmp_path / "team" / "week" / "exp1.0-arith-1115")
    assert [p.name for p in find_runs(tmp_path)] == ["exp1.0-arith-1115"]
    assert find_runs(run_named(book, "1.0")) == [run_named(book, "1.0")]
    with pytest.raises(AirError, match="no directory"):
        logbook(tmp_path / "nowhere")


# --- baselines ------------------------------------------------------------------------------------------------------


def test_models_stand_side_by_side_where_the_rows_are_the_same(air: Any, tmp_path: Path) -> None:
    config = str(write_config(tmp_path))
    for agent, n in (("scripted:oracle", 8), ("scripted:noop", 8), ("model", 8), ("scripted:oracle", 4)):
        timeout = ["--orchestrator.episode_timeout_s", "600"] if agent == "model" else []  # its default, written out
        evaluate(["@", config, *timeout], EvalOptions(agent, n=n), Display(quiet=True))
    (tmp_path / "outputs" / "eval-stopped").mkdir()
    (tmp_path / "outputs" / "eval-stopped" / "evaluation.json").write_text('{"finished": false, "agent": "model"}')
    (tmp_path / "outputs" / "eval-broken").mkdir()
    (tmp_path / "outputs" / "eval-broken" / "evaluation.json").write_text("{")
    root = tmp_path / "outputs"
    tables = grouped(find_baselines(root))
    assert [len(t.rows) for t in tables] == [1, 3, 2]
    assert tables[1].rows[0]["model"] == "scripted:oracle"
    assert tables[1].share_name == "correct" and tables[1].rows[0]["share"]["mean"] == 1.0
    model = next(row for row in tables[1].rows if row["model"] == "tiny:llama")
    assert (
        model["tokens_in"] > model["tokens_out"] > 0 and model["temperature"] == 1.0 and model["effort"]["turns"] == 1
    )
    code, out, _ = air("log", "baselines", "--dir", root)
    assert code == 0 and "arith: 8 tasks of 'test' × 1" in out and re.search(r"scripted:oracle +100% +1\.000 \[", out)
    assert "eval-stopped: it was stopped before its end" in out and "eval-broken: evaluation.json is not valid" in out
    exported = air("log", "export", "--dir", root, "--out", "-")[1]
    assert "## Model baselines" in exported and "| scripted:oracle | 100% | 1.000 [0.631, 1.000] |" in exported
    assert len(json.loads(air("log", "baselines", "--dir", root, "--json")[1])) == 6
    assert "no evaluations" in format_baselines([], root, 100)


def test_kinds_and_levels_have_lines_of_their_own(tmp_path: Path) -> None:
    for name, passed in (("a", 1.0), ("b", 0.5)):
        kinds = [
            {"family": "all", "kind": "", "episodes": 4, "reward": passed, "passed": passed},
            {"family": "hard", "kind": "", "episodes": 2, "reward": passed, "passed": passed},
            {"family": "hard", "kind": "table_spans", "episodes": 2, "reward": passed, "passed": passed},
        ]
        interval = {"mean": passed, "low": passed, "high": passed}
        means = {"reward": interval, "passed": interval, "calls": {"mean": 1.25}}
        data = {"finished": True, "model": name, "split": "bench", "tasks": 2, "rollouts": 2, "kinds": kinds}
        (tmp_path / name).mkdir()
        (tmp_path / name / "evaluation.json").write_text(json.dumps({**data, "means": means, "mode": {"env": {}}}))
    text = format_baselines(grouped(find_baselines(tmp_path)), tmp_path, 100)
    assert re.search(r"model +passed +reward \[95 %\] +calls", text)
    assert re.search(r"hard +100% \(1\.000\) +50% \(0\.500\)", text)
    assert re.search(r"table_spans +100% \(1\.000\) +50% \(0\.500\)", text)


# --- small parts ----------------------------------------------------------------------------------------------------


def test_figures() -> None:
    assert [duration(s) for s in (None, 5, 99, 100, 3599, 3600 * 5 + 120, 3600 * 52)] == [
        *("–", "5 s", "99 s", "2 min", "1 h 00 min", "5 h 02 min", "2 d 4 h")
    ]
    assert [memory(b) for b in (None, 2**20, 3 * 2**30)] == ["–", "1 MiB", "3.0 GiB"]
    assert [money(c) for c in (None, 0.0, 0.001, 12.345)] == ["–", "0.00", "<0.01", "12.35"]
    assert trend([0, 1], 8) == "▁█" and trend([1, 1, 1], 8) == "▁▁▁" and len(trend(range(100), 8)) == 8
    assert trend([1.7e308, -1.7e308], 8) == "█▁" and trend([], 8) == ""
    assert fitted("abcdef", 4) == "abc…" and fitted("日本語", 4) == "日…" and columns("日本語") == 6
    assert plain("a\x1b[2Jb\nc\u202ed") == "a [2Jb c d"
