"""Hypotheses: what is refused and how it is said, the logic of a verdict, and real runs, killed and continued."""

from __future__ import annotations

import json
import math
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from support.probe_cases import ARITH, case_of
from support.tiny_runs import write_config
from support.warm_process import Process

from airloop import training as train
from airloop.config import load_config
from airloop.doctor import examine
from airloop.doctor.base import checks
from airloop.doctor.preflight import SKIPPED
from airloop.engine.embedded import EmbeddedEngine
from airloop.errors import AirError
from airloop.learn.batches import PackedPlan
from airloop.runs.run import Run
from airloop.shipped import shipped
from airloop.stats.looks import Looks
from airloop.text.sparkline import sparkline
from airloop.training import refuse_faulty, start
from airloop.watch.alarms import monitor as alarms
from airloop.watch.alarms.monitor import Halted
from airloop.watch.display.display import Display
from airloop_lab.commands import _seeds
from airloop_lab.faults import FAULTS, fault_on
from airloop_lab.hypotheses import HYPOTHESES, read_hypothesis
from airloop_lab.hypothesis_checks import check_alike, check_steps
from airloop_lab.hypothesis_file import flat
from airloop_lab.hypothesis_report import make_report, note_look
from airloop_lab.hypothesis_report_text import as_json, format_curves, format_report, mean_curve
from airloop_lab.hypothesis_runs import (
    LOOKS,
    Lab,
    Member,
    looks_before,
    open_lab,
    run_hypothesis,
)
from airloop_lab.hypothesis_worker import work

QUIET = Display(quiet=True)
NUMBERS = '"orchestrator.env.0.args.max_number"'
ARITH_TOML = shipped("arith")
TINY = f"""\
claim = "It makes no difference."
config = "{ARITH_TOML}"
seeds = [0, 1, 2]
[both]
max_steps = 2
deterministic = true
orchestrator.batch_size = 16
orchestrator.eval.num_examples = 6
"orchestrator.env.0.args.max_number" = 2
warmstart.steps = 60
warmstart.episodes = 40
[change]
CHANGE
[rule]
prediction = "same"
margin = 0.9
[budget]
minutes = 30
steps = 100
"""


def written(directory: Path, change: str = "trainer.loss.scale_rewards = false", **replaced: str) -> Path:
    text = TINY.replace("CHANGE", change)
    for old, new in replaced.items():
        assert f"{old} = " in text
        text = "\n".join(new if line.startswith(f"{old} = ") else line for line in text.splitlines())
    path = directory / "tiny.toml"
    path.write_text(text)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(AirError) as refused:
        read_hypothesis(path)
    assert refused.value.fix
    return str(refused.value)


# --- reading and refusing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(HYPOTHESES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_shipped_ones_can_be_read_and_fit_their_budget(path: Path) -> None:
    found = read_hypothesis(path)
    assert len(found.written.seeds) >= 3 and len(found.variants) >= 2
    check_alike(found)


@pytest.mark.long
def test_a_teams_experiments_a_to_g_come_with_air_and_can_be_planned(air: Any, tmp_path: Path) -> None:
    """Seed 002: every letter of their log, listed, and planned down to the runs without a model or a data set."""
    code, listed, errors = air("lab", "list")
    names = sorted(path.stem for path in HYPOTHESES.glob("musique-*.toml"))
    assert code == 0 and not errors and {name.split("-")[1][0] for name in names} == set("abcdefg")
    for name in names:
        assert f"\n{name}  " in listed
        code, plan, problem = air("lab", "run", name, "--dry-run", "--json", "--out", tmp_path / name)
        assert code == 0, problem
        runs = json.loads(plan)["runs"]
        assert len(runs) >= 6 and {run["seed"] for run in runs} == {0, 1, 2} and not (tmp_path / name).exists()
    team = read_hypothesis(HYPOTHESES / "musique-g-careful.toml")
    ultra = team.config(team.variant("g2-ultra-conservative"))
    assert (ultra.trainer.optim.lr, ultra.trainer.optim.max_norm, ultra.trainer.model.lora.rank) == (1e-6, 0.1, 8)
    assert ultra.orchestrator.rollouts_per_example == 16 and ultra.trainer.loss.scale_rewards


def test_list_and_show(air: Any) -> None:
    code, text, _ = air("lab", "list")
    assert code == 0 and all(f"{name}  " in text for name in ("mask", "sync", "scaling", "truncation", "sweep"))
    code, text, _ = air("lab", "show", "scaling")
    assert code == 0 and "trainer.loss.scale_rewards = false" in text and "supported if" in text
    code, text, _ = air("lab", "show", "sync", "--json")
    assert code == 0 and json.loads(text)["variants"][1]["text"].startswith("the fault 'sync'")
    code, _, problem = air("lab", "show", "scalling")
    assert code == 1 and "did you mean 'scaling'?" in problem


def test_a_wrong_file_hides_no_other_in_the_list(air: Any, tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "bad.toml").write_text("claim = 3")
    code, text, problem = air("lab", "list", tmp_path)
    assert code == 1 and "tiny" in text and "bad.toml" in problem


def test_exactly_one_thing_is_changed(tmp_path: Path) -> None:
    two = "trainer.optim.lr = 1e-3\ntrainer.loss.scale_rewards = false"
    assert "names 2 things (trainer.optim.lr, trainer.loss.scale_rewards)" in refusal(written(tmp_path, two))
    assert "names 2 things" in refusal(written(tmp_path, 'fault = "mask"\ntrainer.optim.lr = 1e-3'))
    assert "names 0 things" in refusal(written(tmp_path, ""))
    same = refusal(written(tmp_path, "trainer.loss.scale_rewards = true"))
    assert "is what the base has already" in same


def test_a_budget_of_minutes_would_give_each_side_steps_of_its_own(tmp_path: Path) -> None:
    found = read_hypothesis(written(tmp_path, "trainer.optim.lr = 1e-3"))
    for variant in found.variants:
        assert found.config(variant).budget.minutes is None
    text = written(tmp_path, "trainer.optim.lr = 1e-3").read_text()
    (tmp_path / "hurried.toml").write_text(text.replace("deterministic = true", "budget.minutes = 5.0", 1))
    with pytest.raises(AirError, match="the clock would give each side steps of its own"):
        check_steps(read_hypothesis(tmp_path / "hurried.toml"), [0, 1])


def test_a_key_that_brings_a_second_change_along_is_refused_with_the_line_that_holds_it(tmp_path: Path) -> None:
    text = refusal(written(tmp_path, 'trainer.loss.type = "dr_grpo"'))
    assert "also changes trainer.loss.scale_rewards from true to false" in text
    held = written(tmp_path, 'trainer.loss.type = "dr_grpo"', deterministic="trainer.loss.scale_rewards = true")
    assert read_hypothesis(held).changed[0].settings == {"trainer.loss.type": "dr_grpo"}
    # What only comes or goes with the key is no second change.
    comes = read_hypothesis(written(tmp_path, 'trainer.loss.overlong = "reply"'))
    assert [*comes.changed[0].settings] == ["trainer.loss.overlong"]


@pytest.mark.parametrize(
    ("change", "replaced", "said"),
    [
        ('fault = "masks"', {}, "There is no fault 'masks'."),
        ("trainer.loss.scale_rewads = false", {}, "scale_rewads"),
        ("seed = 3", {}, "sets seed, which `air lab run` sets"),
        ("orchestrator.eval.temperature = 0.0", {}, "changes what is measured"),
        ("max_steps = 3", {"seeds": "seeds = [0, 1]"}, "2 seeds cannot tell the change from luck"),
        ("max_steps = 3", {"seeds": "seeds = [0, 1, 1]"}, "each once"),
        ("max_steps = 3", {"steps": "steps = 10"}, "3 seeds of 2 runs take 15 steps, and budget.steps = 10"),
        ("max_steps = 3", {"max_steps": "max_steps = 0"}, "trains nothing"),
        ("max_steps = 3", {"orchestrator.eval.num_examples": "orchestrator.eval.num_examples = 5"}, "5 held-out tasks"),
        ("max_steps = 3", {"prediction": ""}, "has no prediction"),
        ("max_steps = 3", {"prediction": 'prediction = "better"'}, "rule.prediction = 'better'"),
        ("max_steps = 3", {"margin": "margin = 0"}, "can never be shown"),
        ("max_steps = 3", {"margin": "marge = 0.9"}, "rule.marge is no key of a hypothesis"),
        ("max_steps = 3", {"claim": ""}, "claim is missing"),
        ("max_steps = 3", {"config": 'config = "nowhere.toml"'}, "'nowhere.toml' is neither beside it nor here"),
        ("max_steps = 3", {"minutes": "minutes = 0"}, "budget.minutes = 0"),
        ("max_steps = 3", {"claim": "claim = no"}, "not valid TOML"),
        ('fault = "sync"', {"deterministic": "trainer.processes = 2"}, "trains in 2"),
        ("max_steps = 3\n[vary]\nmax_steps = [3]", {}, "both [change] and [vary]"),
    ],
)
def test_what_cannot_be_decided_is_refused(tmp_path: Path, change: str, replaced: dict[str, str], said: str) -> None:
    assert said in refusal(written(tmp_path, change, **replaced))


def test_a_change_of_how_held_out_tasks_are_played_is_refused_before_anything_runs(tmp_path: Path) -> None:
    found = read_hypothesis(written(tmp_path, "orchestrator.sampling.max_tokens = 2"))
    with pytest.raises(AirError, match="changes how held-out tasks are played"):
        run_hypothesis(found, [0, 1, 2], tmp_path / "out", 1, QUIET)
    assert not (tmp_path / "out").exists()


def sweep(directory: Path, vary: str, prediction: str = "") -> Path:
    path = written(directory)
    text = path.read_text().replace("[change]\ntrainer.loss.scale_rewards = false", f"[vary]\n{vary}")
    text = text.replace("num_examples = 6", "num_examples = 9")  # several comparisons take more tasks
    path.write_text(text.replace('prediction = "same"', prediction).replace("margin = 0.9", ""))
    return path


def test_a_sweep_has_one_variant_for_each_value(tmp_path: Path) -> None:
    found = read_hypothesis(sweep(tmp_path, "trainer.optim.lr = [1e-3, 4e-3]\ntrainer.loss.clip_high = [0.4]"))
    assert [v.text for v in found.changed] == [
        "trainer.optim.lr = 0.001",
        "trainer.optim.lr = 0.004",
        "trainer.loss.clip_high = 0.4",
    ]
    assert "is no list of values" in refusal(sweep(tmp_path, "trainer.optim.lr = 1e-3"))
    assert "has a fault" in refusal(sweep(tmp_path, 'fault = ["mask"]'))
    assert "predicts nothing" in refusal(sweep(tmp_path, "trainer.optim.lr = [1e-3]", 'prediction = "lower"'))


def test_seeds_of_the_command_line() -> None:
    assert _seeds("0-2, 7") == [0, 1, 2, 7]
    for wrong in ("", "0,x", "1,1", "0-"):
        with pytest.raises(AirError, match="--seeds"):
            _seeds(wrong)


def test_dotted_keys() -> None:
    tree = {"a": {"b": 1, "c": [1, 2]}, "env": [{"id": "x", "args": {}}], "d.0.e": 2}
    assert flat(tree) == {"a.b": 1, "a.c": [1, 2], "env.0.id": "x", "env.0.args": {}, "d.0.e": 2}
    assert flat({}) == {}


def test_curves_share_one_scale_and_fit_the_line() -> None:
    assert mean_curve([[0.0, 1.0], [1.0]]) == [0.5, 1.0]
    assert sparkline([0.0, 0.5], scale=(0.0, 1.0)) == "▁▄" and sparkline([math.nan, 1.0], scale=(0.0, 1.0)) == " █"
    lines = format_curves({"base": [[0.5] * 401], "changed": [[1.0] * 401]})
    assert all(len(line) <= len("  changed  ") + 40 + len("  0.500 → 0.500 in 401 steps") for line in lines[1:])


# --- faults -----------------------------------------------------------------------------------------------------------


def test_train_has_no_flag_for_faults(air: Any) -> None:
    for flag in ("--fault", "--lab.fault", "--trainer.fault"):
        code, _, problem = air("train", "@", ARITH_TOML, flag, "mask", "--max_steps", 0)
        assert code == 1 and "fault" in problem
    assert not any("fault" in key for key in flat(load_config([]).model_dump(mode="json")))


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_taken_out_without_a_trace_and_told_while_it_is_in(name: str, tmp_path: Path) -> None:
    def parts() -> list[Any]:
        from airloop import step
        from airloop import training as train

        own = [PackedPlan.__init__, EmbeddedEngine.__init__, step.assign_advantages]
        return [*own, train.summary, Run.note, alarms.rules, examine.checks]

    before = parts()
    with pytest.raises(ZeroDivisionError), fault_on(name) as fault:
        assert sum(a is not b for a, b in zip(before, parts(), strict=True)) == 5
        assert {r.name for r in alarms.rules()} == {rule.name for rule in before[5]()} - fault.alarms
        assert {c.name for c in examine.checks()} == {c.name for c in before[6]()} - fault.checks
        run = Run.create(load_config(["@", str(ARITH_TOML), "--output_dir", str(tmp_path)]), "arith")
        run.close()
        raise ZeroDivisionError
    assert parts() == before
    assert run.status()["fault"] == fault.record() and run.status()["status"] == "running"
    assert fault.alarms <= {rule.name for rule in alarms.rules()} and fault.checks <= {c.name for c in checks()}


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.checks])
def test_exactly_the_proofs_that_would_stop_it_are_silenced(name: str) -> None:
    with FAULTS[name].put_in(), case_of(ARITH) as case:
        results = examine.examine(case, ("proof",))
    assert {r.check.name for r in results if r.verdict == "fail"} == FAULTS[name].checks


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.alarms])
def test_the_alarm_that_is_silenced_would_have_stopped_it(name: str, tmp_path: Path) -> None:
    few = {NUMBERS: f"{NUMBERS} = 1", "max_steps": "max_steps = 4"}  # so few sums that replies depend on them
    found = read_hypothesis(written(tmp_path, f'fault = "{name}"', **few))
    config = found.config(found.variants[0], 0, str(tmp_path / "out"))
    with FAULTS[name].put_in(), pytest.raises(Halted) as halted:
        start(config, QUIET, skip_proofs=True)
    assert {halted.value.alarm.name} == FAULTS[name].alarms


# --- real runs --------------------------------------------------------------------------------------------------------


def planned(lab: Path) -> list[Member]:
    return open_lab(lab).members()


@pytest.mark.long
def test_killed_and_continued(air: Any, tmp_path: Path) -> None:
    """As a person has it: killed while the second run is under way, the same command goes on, the first run stays."""
    file, out = written(tmp_path, 'fault = "sync"'), tmp_path / "out"
    command = ["lab", "run", file, "--seeds", "0", "--out", out]
    process = Process(command)
    until = time.monotonic() + 300
    episodes = "exp1.1-*/trajectories/step_0000/*.json"
    while not list(out.glob(episodes)) and time.monotonic() < until and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    first, second = planned(out)
    assert first.finished and second.path is not None and not second.finished
    assert open_lab(out).spent_s > 0
    sampled = {p.name for p in out.glob(episodes)}
    ended = Run.open(first.path).status()["time"]  # type: ignore[arg-type]
    code, _, problem = air(*command)
    assert code == 0 and "1 of 2 runs are complete already" in problem
    assert Run.open(first.path).status()["time"] == ended  # type: ignore[arg-type]
    assert Run.open(second.path).status()["fault"]["name"] == "sync" and len(planned(out)) == 2
    kept = {p.name for p in second.path.glob("trajectories/*/*.json")}
    assert sampled and sampled <= kept  # what had been sampled is still there
    assert (second.path / "summary.txt").read_text().startswith("FAULT ON PURPOSE (sync)")
    assert "fault" not in Run.open(first.path).status()
    code, text, _ = air("lab", "report", out, "--json")
    found = json.loads(text)
    assert code == 0 and found["verdict"] == "undecided" and "only 1 of the 3 pairs" in found["why"]
    assert (out / "report.png").read_bytes()[:4] == b"\x89PNG"
    _same_start_on_both_sides(planned(out))


def _same_start_on_both_sides(members: list[Member]) -> None:
    """The same seed: the same supervised start, tasks, episode seeds and, bit for bit, first evaluation."""
    for base, changed in zip(members[::2], members[1::2], strict=True):
        assert base.path and changed.path and base.seed == changed.seed
        one, two = Run.open(base.path), Run.open(changed.path)
        rows = [{(t.task.id, t.seed, t.reward) for t in run.evaluation("before")} for run in (one, two)]
        assert rows[0] == rows[1] and len(rows[0]) == 24
        for step in (0, 1):
            drawn = [sorted((t.task.id, t.seed) for t in run.finished(step).values()) for run in (one, two)]
            assert drawn[0] == drawn[1] and len(drawn[0]) == 16
    assert len(list(members[0].path.parent.glob("warmstart-*"))) == len({m.seed for m in members})  # type: ignore[union-attr]


@pytest.mark.long
def test_a_verdict_from_real_runs_and_what_a_failed_run_does_to_it(air: Any, tmp_path: Path) -> None:
    """The runs are made in this process; the rest is as `air lab run` does it."""
    shorter = {"warmstart.steps": "warmstart.steps = 10", "deterministic": "deterministic = false"}
    found = read_hypothesis(written(tmp_path, **shorter))
    lab = Lab(tmp_path / "out", found, [0, 1, 2], [{"time": 0.0, "added": [0, 1, 2]}], {})
    lab.path.mkdir()
    lab.save()
    for seed in lab.seeds:
        for variant in found.variants:
            config = found.config(variant, seed, str(lab.path))
            run = Run.create(config, f"arith-{variant.slug}-seed{seed}", planned=True)
            noted = {"hypothesis": "tiny", "variant": variant.name, "seed": seed, "fault": ""}
            run.note(lab=noted, proofs=SKIPPED)  # they are run in the test before
            work(run.path)
    report = make_report(lab.path)
    assert report.decision is not None and report.decision.verdict in ("supported", "undecided")
    assert report.compared[0].difference.interval.n == 3 and len(report.curves["base"]) == 3  # type: ignore[union-attr]
    text = format_report(report)
    assert "3 seeds" in text and "6 tasks" in text and "6 of 6 complete" in text
    json.dumps(as_json(report), allow_nan=False)
    assert report.level == 0.95 and report.decidable and not list(lab.path.glob("looks*"))
    code, text, _ = air("lab", "report", lab.path)
    assert code == 0 and "95 %, Student's t" in text and Looks(lab.path / LOOKS).seen() == [frozenset({0, 1, 2})]
    assert make_report(lab.path).level == 0.95  # the same seeds again are the same look
    lab.sessions += [{"time": 1.0, "added": [], "air_version": version} for version in ("0.1.0", "0.2.0")]
    lab.save()
    assert "different versions of air (0.1.0, 0.2.0)" in format_report(make_report(lab.path))
    Run.open(lab.members()[3].path).set_status("failed", "the disk was full\n  fix: free some")  # type: ignore[arg-type]
    again = make_report(lab.path)
    assert again.decision is not None and again.decision.verdict == "undecided"
    assert "seed 1, changed: failed: the disk was full" in again.decision.why and "fix" not in again.decision.why
    code, text, _ = air("lab", "report", tmp_path)
    assert code == 0 and "\nout  undecided " in f"\n{text}"


def seen_lab(tmp_path: Path, file: Path, sessions: list[dict[str, Any]]) -> Lab:
    seeds = [seed for session in sessions for seed in session["added"]]
    found = read_hypothesis(file)
    configs = flat(found.config(found.variants[0]).model_dump(mode="json"))
    kept = {key: value for key, value in configs.items() if key not in ("seed", "output_dir")}
    lab = Lab(tmp_path / "out", found, seeds, sessions, kept)
    lab.path.mkdir(exist_ok=True)
    lab.save()
    return lab


def test_seeds_that_are_added_after_a_look_have_a_stricter_level(tmp_path: Path) -> None:
    first, later = {"added": [0, 1, 2], "looks": True}, {"added": [3, 4], "looks": True}
    lab = seen_lab(tmp_path, written(tmp_path), [first, later])
    assert looks_before(lab) == [] and make_report(lab.path).level == 0.95  # nobody had seen a verdict
    Looks(lab.path / LOOKS).note([0, 1, 2])
    report = make_report(lab.path)
    assert report.level == 0.975 and looks_before(lab) == [frozenset({0, 1, 2})] and not report.decidable
    text = format_report(report)
    assert "a verdict on seeds 0 1 2 had been seen when the others were added: intervals are of 97.5 %" in text
    assert as_json(report)["level"] == 0.975
    note_look(report)  # of runs that are not there, nothing was seen
    assert len(Looks(lab.path / LOOKS).seen()) == 1


def test_earlier_versions_showed_a_verdict_after_every_session(tmp_path: Path) -> None:
    sessions: list[dict[str, Any]] = [{"added": [0, 1]}, {"added": [2]}, {"added": []}, {"added": [3]}]
    lab = seen_lab(tmp_path, written(tmp_path), sessions)
    assert looks_before(lab) == [frozenset({0, 1, 2})]  # two seeds decide nothing, so nothing was to be seen
    assert looks_before(lab, [4]) == [frozenset({0, 1, 2}), frozenset({0, 1, 2, 3})]


def test_seeds_are_not_added_to_a_sweep_that_was_seen(tmp_path: Path) -> None:
    file = sweep(tmp_path, "trainer.optim.lr = [1e-3, 4e-3]")
    lab = seen_lab(tmp_path, file, [{"added": [0, 1, 2], "looks": True}])
    Looks(lab.path / LOOKS).note([0, 1, 2])
    with pytest.raises(AirError, match="has been looked at") as refused:
        run_hypothesis(read_hypothesis(file), [0, 1, 2, 3], lab.path, 1, QUIET)
    assert "a hypothesis of its own" in refused.value.fix and open_lab(lab.path).seeds == [0, 1, 2]


@pytest.mark.slow
def test_the_budget_ends_it_and_keeps_what_is_done(air: Any, tmp_path: Path) -> None:
    file, out = written(tmp_path, minutes="minutes = 0.02"), tmp_path / "out"
    code, text, problem = air("lab", "run", file, "--out", out)
    assert code == 1 and "the budget of 0.02 minutes is spent with 6 runs not complete" in problem
    assert "UNDECIDED: not every run of the plan counts" in text and "has not begun" in text
    assert open_lab(out).spent_s >= 1.2
    code, _, problem = air("lab", "run", written(tmp_path, "trainer.optim.lr = 1e-3"), "--out", out)
    assert code == 1 and "a hypothesis is not changed after its runs" in problem
    code, _, problem = air("lab", "run", written(tmp_path), "--out", out, "--seeds", "0-40")
    assert code == 1 and "budget.steps = 100" in problem
    assert air("lab", "report", tmp_path / "nothing")[0] == 1


@pytest.mark.parametrize(
    ("rule", "vary", "said"),
    [
        ("margin = 0.1", "trainer.optim.lr = [1e-3]", "margin and base_gain say nothing"),
        ("base_gain = 0.1", "trainer.optim.lr = [1e-3]", "margin and base_gain say nothing"),
        ("", "trainer.optim.lr = [1e-3, 0.001]", "twice"),
    ],
)
def test_what_a_sweep_could_not_use_is_refused(tmp_path: Path, rule: str, vary: str, said: str) -> None:
    file = tmp_path / "s.toml"
    config = shipped("arith")
    file.write_text(
        f'claim = "c"\nconfig = "{config}"\nseeds = [0, 1, 2]\n[vary]\n{vary}\n[rule]\nmetric = "reward"\n{rule}\n'
        "[budget]\nminutes = 1\nsteps = 10000\n"
    )
    with pytest.raises(AirError, match=said):
        read_hypothesis(file)


def test_a_faulty_run_is_not_continued_without_its_fault(tmp_path: Path) -> None:
    run = Run.create(load_config(["@", str(write_config(tmp_path))]), "arith")
    run.note(lab={"fault": "mask"})
    run.set_status("stopped")
    run.close()
    with pytest.raises(AirError, match="put in on purpose"):
        start(run.config, Display(quiet=True), resume=run.path)
    with fault_on("mask"):
        assert train.refuse_faulty is not refuse_faulty  # inside, it goes on as it is
        train.refuse_faulty(run)
