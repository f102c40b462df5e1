"""The doctor's frame: what becomes of findings, of checks that fail themselves, and of a run that is examined."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from support import warm_process
from support.examined import TINY, results

from airloop.config import load_config
from airloop.doctor import base, catalogue
from airloop.doctor.base import Finding, check, checks, passed
from airloop.doctor.case import Case
from airloop.doctor.designs import DESIGN
from airloop.doctor.examine import Result, examine
from airloop.doctor.failures import WHAT
from airloop.doctor.probe import before_warmstart
from airloop.doctor.report import as_json, exit_code, format_report, refusal, warnings
from airloop.errors import AirError
from airloop.models.sources import DEFAULT_MODEL, locate
from airloop.training import start
from airloop.watch.display.display import Display

ROOT = Path(__file__).parents[1]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that a test registers are gone after it."""
    checks()
    monkeypatch.setattr(base, "_CHECKS", dict(base._CHECKS))


def cli(*argv: str) -> subprocess.CompletedProcess[str]:
    return warm_process.run(argv)


# --- running checks ---------------------------------------------------------------------------------------------


def test_a_check_that_raises_is_a_failure_with_its_traceback(registry: None) -> None:
    @check("A99", stage="fast", title="nothing is wrong")
    def broken_check(case: Case) -> Finding:
        return passed(str(1 // 0))

    (result,) = results(TINY, "A99")
    (finding,) = result.findings
    assert finding.verdict == "fail" and "ZeroDivisionError" in finding.seen and "broken_check" in finding.detail
    assert result.seconds > 0


def test_a_check_that_finds_nothing_at_all_is_a_defect(registry: None) -> None:
    @check("A99", stage="fast", title="nothing is wrong")
    def mute(case: Case) -> Iterator[Finding]:
        yield from ()

    assert "not even that all is well" in results(TINY, "A99")[0].findings[0].seen


def test_what_a_generator_found_before_it_raised_is_not_taken_for_the_whole(registry: None) -> None:
    @check("A99", stage="fast", title="nothing is wrong")
    def halfway(case: Case) -> Iterator[Finding]:
        yield passed("so far so good")
        raise AirError("then this", "do that")

    (finding,) = results(TINY, "A99")[0].findings
    assert (finding.verdict, finding.seen, finding.fix) == ("fail", "then this", "do that")


def test_later_stages_wait_for_the_failures_of_earlier_ones(registry: None) -> None:
    ran: list[str] = []

    @check("A99", stage="fast", title="first")
    def first(case: Case) -> Finding:
        return Finding("fail", "seen", "why", "fix")

    @check("A99", stage="proof", title="then")
    def then(case: Case) -> Finding:
        ran.append("then")
        return passed("fine")

    with Case(load_config(TINY)) as case:
        early, late = examine(case, only=["A99"])
    assert early.verdict == "fail" and late.verdict is None and not ran
    assert late.not_done == "the failure of “first” comes first"


def test_a_finding_has_all_three_parts() -> None:
    with pytest.raises(ValueError, match="what was seen, why, and what to change"):
        Finding("warn", "seen", "why")


def test_parts_of_a_case_are_made_once_and_closed() -> None:
    with Case(load_config(TINY)) as case:
        assert case.envs is case.envs and case.prompts is case.prompts and case.tokenizer is case.tokenizer
        assert case.prompts[0].tokens == len(case.tokenizer.encode(case.prompts[0].text)) > 10
        assert case.plan is None, "there is no GPU to plan for"
        parts = case.parts
        assert parts.loaded.model is not None and case.parts is parts and not before_warmstart(case.parts.config)
    assert case._thread is None


def test_a_model_that_is_still_to_be_warmed_is_known_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path))
    with Case(load_config([*TINY, "--warmstart.steps", "2"])) as case:
        assert before_warmstart(case.parts.config)


@pytest.mark.long
def test_fast_checks_of_the_default_config_take_less_than_five_seconds() -> None:
    """In processor time, as others may use the machine, and no more than three times what importing torch takes on
    it, as machines differ; the conversion of a new machine's first model not included."""
    locate(DEFAULT_MODEL)
    script = (
        "import time, torch; imported = time.process_time()\n"
        "from airloop.doctor.run_doctor import run_doctor; from airloop.watch.display.display import Display\n"
        "found = run_doctor([], Display(quiet=True), skip_proofs=True)\n"
        "assert all(r.verdict == 'pass' for r in found), found\nprint(imported, time.process_time() - imported)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    imported, took = map(float, done.stdout.split())
    assert took < max(5 - imported, 3 * imported), (imported, took)


# --- the report ---------------------------------------------------------------------------------------------------

VERDICTS = st.lists(st.lists(st.sampled_from(["pass", "warn", "fail"]), max_size=3), max_size=6)


@pytest.mark.slow
@given(VERDICTS)
def test_report_exit_code_and_refusal_agree(verdicts: list[list[str]]) -> None:
    some = [c for c in checks() if c.stage == "fast"]
    told = [
        Result(
            some[i], tuple(Finding(v, f"seen {i}", "why", "fix", ids=("A1",)) for v in each), 0.1, "" if each else "no"
        )  # type: ignore[arg-type]
        for i, each in enumerate(verdicts)
    ]
    flat = [v for each in verdicts for v in each]
    assert exit_code(told) == (2 if "fail" in flat else 1 if "warn" in flat else 0)
    report = json.loads(json.dumps(as_json(told)))
    assert (refusal(report) is not None) == ("fail" in flat) and len(warnings(report)) == flat.count("warn")
    text = format_report(told)
    assert text.count("\n  why: ") == flat.count("fail") + flat.count("warn")
    assert text.count("FAIL A1:") == flat.count("fail")


def test_the_report_has_a_table_by_family_and_corrected_lines() -> None:
    text = format_report(results([*TINY, "--trainer.optim.lr", "1e-6"]))
    assert "A. configuration\n" in text and "B. model and tokenizer\n" in text
    assert re.search(r"  WARN  A10 .*see below", text) and re.search(r"  pass  B8 +the tokenizer is", text)
    assert "WARN A10: trainer.optim.lr = 1e-06 with LoRA\n  why: it is small for LoRA" in text
    assert "\n      [trainer.optim]\n      lr = 0.0001\n" in text
    assert text.endswith("1 warn.")


@pytest.mark.slow
def test_air_doctor_exit_codes_json_and_only(air: Any, tmp_path: Path) -> None:
    good = cli("doctor", *TINY, "--skip-proofs", "--json")
    report = json.loads(good.stdout)
    assert good.returncode == 0 == report["exit_code"] and {c["stage"] for c in report["checks"]} == {"fast"}
    code, text, _ = air("doctor", *TINY, "--skip-proofs", "--only", "a10,B3", "--trainer.optim.lr", "1e-6")
    assert code == 1 and "B3" in text and "A7" not in text
    (tmp_path / "bad.toml").write_text("batch_size = 8\n")
    code, text, _ = air("doctor", "@", str(tmp_path / "bad.toml"))
    assert code == 2 and "bad.toml:1: batch_size = 8 at top level" in text
    assert "[orchestrator]\n      batch_size = 8" in text
    code, _, errors = air("doctor", *TINY, "--only", "Z9")
    assert code == 1 and "--only Z9: no check answers it" in errors


# --- air train asks the doctor --------------------------------------------------------------------------------------


def tiny_train(directory: Path, *more: str, skip_proofs: bool = False, out: Console | None = None) -> Path:
    small = ["--max_steps", "1", "--seq_len", "128", "--orchestrator.batch_size", "4", "--output_dir", str(directory)]
    small += ["--orchestrator.rollouts_per_example", "2", "--orchestrator.eval.num_examples", "2"]
    config = load_config([*TINY, *small, *more])
    display = Display(out or Console(quiet=True), quiet=out is None)
    return start(config, display, skip_proofs=skip_proofs).run.path


def test_what_the_fast_checks_refuse_leaves_no_run_behind(tmp_path: Path) -> None:
    with pytest.raises(AirError, match=r"^B3: .*no such directory") as caught:
        tiny_train(tmp_path, "--model.name", "./nowhere")
    assert caught.value.fix and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_skipped_proofs_are_recorded_in_the_run(tmp_path: Path) -> None:
    status = json.loads((tiny_train(tmp_path, skip_proofs=True) / "status.json").read_text())
    assert status["status"] == "completed" and status["proofs"] == "skipped (--skip-proofs)"


@pytest.fixture
def one_probe(registry: None, monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """Only one check comes after the fast ones: what a user's package might add."""
    seen: list[Case] = []
    for name, known in list(base._CHECKS.items()):
        if known.stage != "fast":
            del base._CHECKS[name]

    @check("E99", stage="probe", title="two and two are four")
    def looks_at_parts(case: Case) -> Finding:
        seen.append(case)
        ids = case.tokenizer.encode("2 + 2 =")

        async def sample() -> int:
            from airloop.engine.base import Sampling

            return len((await case.parts.engine.generate(ids, Sampling(max_tokens=3, temperature=1.0))).token_ids)

        drawn = case.wait(sample())
        if case.config.seed == 13:
            return Finding("fail", f"{drawn} tokens under seed 13", "it brings bad luck", "take another", {"seed": 14})
        return passed(f"{drawn} tokens")

    return seen


@pytest.mark.slow
def test_probes_see_the_runs_own_parts_in_its_own_loop_and_are_kept(tmp_path: Path, one_probe: list[Case]) -> None:
    run = tiny_train(tmp_path)
    (case,) = one_probe
    assert case.parts.config.output_dir and json.loads((run / "status.json").read_text())["proofs"] == "passed"
    (told,) = json.loads((run / "doctor.json").read_text())["checks"]
    assert told["name"] == "looks_at_parts" and told["verdict"] == "pass" and told["findings"][0]["seen"] == "3 tokens"


def test_a_failed_probe_stops_the_run_and_a_resumed_one_is_probed_again(tmp_path: Path, one_probe: list[Case]) -> None:
    with pytest.raises(AirError, match="E99: 3 tokens under seed 13") as caught:
        tiny_train(tmp_path, "--seed", "13")
    assert "seed = 14\n  to train anyway: `air train --resume " in caught.value.fix
    (run,) = tmp_path.glob("exp*")
    status = json.loads((run / "status.json").read_text())
    assert status["status"] == "failed" and status["proofs"] == "failed" and not (run / "metrics.jsonl").exists()
    with pytest.raises(AirError, match="E99"):
        start(load_config([]), Display(Console(quiet=True), quiet=True), resume=run)
    assert len(one_probe) == 2


@pytest.mark.slow
def test_a_run_that_has_passed_is_not_probed_again_when_resumed(tmp_path: Path, one_probe: list[Case]) -> None:
    run = tiny_train(tmp_path)
    start(load_config([]), Display(Console(quiet=True), quiet=True), resume=run)
    assert len(one_probe) == 1


# `air`, leaving a mark when the first check begins, before there is a run, or the first probe in a run.
MARKED = """
from pathlib import Path
from airloop.cli import main
from airloop.watch.display.display import Display

show = Display.phase

def phase(self, text, *more):
    if text.startswith("doctor, check") and (self.run is not None) == {in_run}:
        Path({mark!r}).touch()
    show(self, text, *more)

Display.phase = phase
{more}
main()
"""
# From that mark on replies are made and not handed over: what waits for them is not over before it is stopped.
HELD = """
import asyncio
from airloop.engine.embedded.engine import EmbeddedEngine
generate = EmbeddedEngine.generate

async def held(self, *given, **named):
    found = await generate(self, *given, **named)
    if Path({mark!r}).exists():
        await asyncio.sleep(200)
    return found

EmbeddedEngine.generate = held
"""


def interrupted(directory: Path, *, in_run: bool, after_s: float = 0.0) -> tuple[int | None, str]:
    argv = ["--orchestrator.env.0.id", "tune", "--orchestrator.sampling.max_tokens", "300", "--max_steps", "1"]
    argv = ["train", "--model.name", "tiny:llama", *argv, "--output_dir", str(directory)]
    begun = directory / "begun"
    more = HELD.format(mark=str(begun)) if in_run else ""
    process = warm_process.Process(argv, stderr=True, code=MARKED.format(mark=str(begun), in_run=in_run, more=more))
    deadline = time.monotonic() + 300
    while not begun.exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    return process.returncode, said


@pytest.mark.slow
def test_ctrl_c_before_there_is_a_run_is_said_too(tmp_path: Path) -> None:
    """typer takes the interrupt for itself: a command that was stopped looked like one that had succeeded."""
    code, said = interrupted(tmp_path, in_run=False)
    assert code == 130 and "stopped" in said.lower()


@pytest.mark.slow
def test_ctrl_c_in_the_middle_of_a_probe_ends_the_run_at_once(tmp_path: Path) -> None:
    code, said = interrupted(tmp_path, in_run=True, after_s=1)  # it plays episodes by then
    assert code == 130 and "go on with `air train --resume" in said
    (status,) = [json.loads(path.read_text()) for path in tmp_path.glob("exp*/status.json")]
    assert status["status"] == "stopped" and "proofs" not in status


@pytest.mark.long
def test_a_run_of_two_processes_is_probed_by_one_before_they_start(tmp_path: Path) -> None:
    """Random weights never add up right: a failure, in the words of the process apart."""
    with pytest.raises(AirError, match=r"E1, E2: \d+ of \d+ groups have equal rewards") as caught:
        tiny_train(tmp_path, "--model.device", "cpu", "--trainer.processes", "2")
    assert "--skip-proofs" in caught.value.fix
    (run,) = tmp_path.glob("exp*")
    report = json.loads((run / "doctor.json").read_text())
    assert {told["stage"] for told in report["checks"]} == {"probe", "proof"}
    assert json.loads((run / "status.json").read_text())["proofs"] == "failed" and not (run / "trajectories").exists()


# --- the catalogue --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_failure_is_answered_and_the_page_is_current() -> None:
    for id in WHAT:
        assert catalogue.answers(id), f"{id} has no answer"
    page = ROOT / "docs" / "failures.md"
    assert page.read_text() == catalogue.make(), "run `python -m airloop.doctor.catalogue > docs/failures.md`"


def test_every_test_that_proves_a_design_exists() -> None:
    named = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
    there = {name for file in (ROOT / "tests").rglob("test_*.py") for name in named.findall(file.read_text())}
    for id, (_, test) in DESIGN.items():
        assert test in there and id in WHAT, f"{id}: {test}"


def test_every_check_has_ids_of_a_family_and_a_title() -> None:
    for known in checks():
        assert known.ids and all(id[0] in base.FAMILIES for id in known.ids) and known.title
        assert all(id in WHAT or "-" in id for id in known.ids), known.ids


def test_help_stays_quick() -> None:
    began = time.process_time()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "airloop.cli", "--help"], capture_output=True, text=True, check=False
    )
    assert time.process_time() - began < 5 and "doctor" in done.stdout
    assert "torch" not in done.stderr and "airloop.doctor" not in done.stderr
