"""What a hypothesis may vary: grids, losses, weights of rewards, whole configs; and sweeps that only look."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_hypotheses import refusal, seen_lab, sweep, written

from airloop.errors import AirError
from airloop.shipped import shipped
from airloop.stats.holm import holm
from airloop.stats.intervals import student_mean
from airloop_lab.confirming import write_confirming
from airloop_lab.hypotheses import format_hypothesis, format_list, read_hypothesis
from airloop_lab.hypothesis_checks import check_alike, excuses
from airloop_lab.hypothesis_file import flat
from airloop_lab.hypothesis_report import Compared, Pair, Report, judged_together, make_report
from airloop_lab.hypothesis_report_text import as_json, format_next, format_report, format_verdicts, verdicts_json
from airloop_lab.hypothesis_runs import Lab
from airloop_lab.verdicts import decide

GRID = "trainer.optim.lr = [1e-3, 4e-3]\ntrainer.loss.kl_beta = [0.0, 0.05, 0.1]"


def grid(directory: Path, keys: str = GRID) -> Path:
    path = sweep(directory, keys)
    path.write_text(path.read_text().replace("[vary]", "[grid]"))
    return path


# --- grids ------------------------------------------------------------------------------------------------------------


def test_a_grid_has_every_combination_and_the_first_is_the_base(tmp_path: Path) -> None:
    found = read_hypothesis(grid(tmp_path))
    assert found.base.settings == {"trainer.optim.lr": 1e-3, "trainer.loss.kl_beta": 0.0}
    assert [v.name for v in found.changed] == [
        "lr = 0.001, kl_beta = 0.05",
        "lr = 0.001, kl_beta = 0.1",
        "lr = 0.004, kl_beta = 0",
        "lr = 0.004, kl_beta = 0.05",
        "lr = 0.004, kl_beta = 0.1",
    ]
    last = found.config(found.changed[-1])
    assert (last.trainer.optim.lr, last.trainer.loss.kl_beta) == (4e-3, 0.1)
    assert found.config(found.base).trainer.optim.lr == 1e-3
    assert len({v.slug for v in found.variants}) == 6 and "kl_beta" not in found.base.slug
    assert "grid of trainer.optim.lr × trainer.loss.kl_beta, 6 cells" in format_list([found])
    assert "in every combination; the base is" in format_hypothesis(found)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("trainer.optim.lr = [1e-3, 4e-3]", "has 1 key (trainer.optim.lr)"),
        (f"{GRID}\nmax_steps = [1, 2]", "has 3 keys"),
        ("trainer.optim.lr = [1e-3]\ntrainer.loss.kl_beta = [0.0, 0.1]", "has one value"),
        ("trainer.optim.lr = [1e-3, 1e-3]\ntrainer.loss.kl_beta = [0.0, 0.1]", "twice"),
        ("trainer.optim.lr = []\ntrainer.loss.kl_beta = [0.0, 0.1]", "is no list of values"),
        ("trainer.optim.lr = [1e-3, 4e-3]\nseed = [0, 1]", "sets seed, which"),
        ("trainer.optim.lr = [1e-3, 4e-3]\norchestrator.eval.temperature = [0.5, 1.0]", "changes what is measured"),
    ],
)
def test_what_is_no_grid_is_refused(tmp_path: Path, keys: str, said: str) -> None:
    assert said in refusal(grid(tmp_path, keys))


# --- losses, weights, whole configs -----------------------------------------------------------------------------------


def test_a_loss_is_a_factor_with_all_that_comes_with_it(tmp_path: Path) -> None:
    losses = ["dr_grpo", "dapo", "gspo", "cispo", "rloo"]
    found = read_hypothesis(sweep(tmp_path, f"trainer.loss.type = {json.dumps(losses)}"))
    made = [found.config(variant).trainer.loss for variant in found.changed]
    assert [loss.type for loss in made] == losses and made[0].scale_rewards is False and made[1].clip_high == 0.28
    check_alike(found)
    crossed = read_hypothesis(
        grid(tmp_path, 'trainer.loss.type = ["grpo", "dr_grpo"]\ntrainer.optim.lr = [1e-3, 4e-3]')
    )
    assert crossed.config(crossed.changed[-1]).trainer.loss.scale_rewards is False


WEIGHTS = '"orchestrator.env.0.rewards" = [{ correct = 0.5 }, { correct = 2.0 }]'


def test_weights_of_rewards_are_a_factor_if_something_else_is_compared(tmp_path: Path) -> None:
    path = sweep(tmp_path, WEIGHTS)
    found = read_hypothesis(path)
    assert [found.config(v).orchestrator.env[0].rewards for v in found.changed] == [{"correct": 0.5}, {"correct": 2.0}]
    with pytest.raises(AirError, match="changes how held-out tasks are played") as refused:
        check_alike(found)
    assert refused.value.fix == 'in [rule]: metric = "success"'
    path.write_text(path.read_text().replace("[rule]", '[rule]\nmetric = "success"'))
    found = read_hypothesis(path)
    check_alike(found)
    excused = excuses(found, found.changed[0])
    assert excused("mode.env.arith.rewards.correct") and not excused("mode.env.arith.args.max_number")


SETS = """
[sets.careful]
trainer.optim.lr = 1e-4
trainer.optim.max_norm = 0.01
[sets.bold]
config = "arith"
trainer.optim.lr = 2e-2
"""


def whole(directory: Path, names: str = '["careful", "bold"]', sets: str = SETS) -> Path:
    path = sweep(directory, f"config = {names}")
    path.write_text(path.read_text() + sets)
    return path


def test_whole_configs_are_a_factor(tmp_path: Path) -> None:
    found = read_hypothesis(whole(tmp_path))
    careful, bold = (found.config(v) for v in found.changed)
    assert [v.name for v in found.changed] == ["careful", "bold"]
    assert (careful.trainer.optim.lr, careful.trainer.optim.max_norm) == (1e-4, 0.01)
    assert bold.trainer.optim.lr == 2e-2 and bold.max_steps == 2  # [both] is for it, too
    assert "max_norm = 0.01" in format_hypothesis(found)
    own = tmp_path / "other.toml"
    own.write_text(shipped("arith").read_text().replace("lr = ", "lr = 0.123 # "))
    file = read_hypothesis(whole(tmp_path, '["other.toml"]', ""))
    assert file.config(file.changed[0]).trainer.optim.lr == 0.123
    one = read_hypothesis(written(tmp_path, 'config = "other.toml"'))
    assert one.config(one.changed[0]).trainer.optim.lr == 0.123 and one.changed[0].name == "changed"


def test_whole_configs_that_cannot_be_are_refused(tmp_path: Path) -> None:
    assert 'did you mean "careful"?' in refusal(whole(tmp_path, '["carefull", "careful", "bold"]'))
    assert "[sets.bold] is used nowhere" in refusal(whole(tmp_path, '["careful"]'))
    assert "changes nothing" in refusal(whole(tmp_path, '["a"]', "[sets.a]\n"))
    measured = refusal(whole(tmp_path, '["a"]', "[sets.a]\norchestrator.eval.num_examples = 20\n"))
    assert "changes orchestrator.eval.num_examples from 9 to 20" in measured
    assert "sets seed, which" in refusal(whole(tmp_path, '["a"]', "[sets.a]\nseed = 3\n"))
    assert "is what the base has already" in refusal(whole(tmp_path, '["arith"]', ""))


def test_what_is_trained_on_is_a_factor_where_test_rows_stay(tmp_path: Path) -> None:
    path = sweep(tmp_path, '"orchestrator.env.0.args.datasets" = ["generated,,train[:16]"]')
    both = 'orchestrator.eval.split = "test"\n"orchestrator.env.0.args.test_datasets" = "generated,,test"\n'
    text = path.read_text().replace(str(shipped("arith")), "musique/small").replace("[both]\n", f"[both]\n{both}")
    text = text.replace('"orchestrator.env.0.args.max_number" = 2\n', "")
    path.write_text(text.replace('split = "test"', 'split = "eval"'))
    with pytest.raises(AirError, match="changes how held-out tasks are played"):
        check_alike(read_hypothesis(path))
    path.write_text(text)
    check_alike(read_hypothesis(path))


# --- reports ----------------------------------------------------------------------------------------------------------


def compared(report: Report, gains: dict[str, list[float]]) -> Report:
    """With numbers in place of runs: a gain for each seed, on every task a little different."""
    report.compared = []
    for variant in report.lab.hypothesis.changed:
        one = Compared(variant, "reward", report.level)
        for seed, gain in enumerate(gains.get(variant.name, [])):
            by_task = {("e", str(task)): gain + 0.001 * (task % 3) for task in range(24)}
            one.pairs.append(Pair(seed, 0.5, 0.5 + gain, 0.1, 0.1, by_task, 0.0, 0))
        report.compared.append(one)
    report.unfinished = []
    report.base_after, report.base_gain = student_mean([0.5, 0.5, 0.5]), student_mean([0.4, 0.4, 0.4])
    if not report.exploratory and report.lab.hypothesis.is_sweep:
        for one, judged in zip(report.compared, holm([one.p for one in report.compared]), strict=True):
            one.judged = judged
    return report


def lab_of(tmp_path: Path, file: Path, seeds: list[int]) -> Lab:
    return seen_lab(tmp_path, file, [{"added": seeds, "looks": True}])


def test_a_sweeps_report_is_corrected_for_its_comparisons(tmp_path: Path) -> None:
    """Strong, and weak: a difference that would count alone, and among five does not."""
    weak = [0.08, 0.11, 0.14]
    lab = lab_of(tmp_path, grid(tmp_path), [0, 1, 2])
    gains = {v.name: [0.0, 0.01, -0.01] for v in lab.hypothesis.changed}
    first, second, *_ = gains
    report = compared(make_report(lab.path), gains | {first: [0.3, 0.301, 0.302], second: weak})
    strong, faint, *_ = report.compared
    assert strong.word == "higher" and faint.word == "no evidence of a difference" and faint.p < 0.05
    text = format_report(report)
    assert "Corrected for 5 comparisons (Holm)" in text and "99 %" in text and "mean by trainer.optim.lr (down)" in text
    (line,) = (row for row in text.splitlines() if row.strip().startswith(second))
    assert "no evidence" in line and "p 0." in line
    interval = faint.interval
    assert interval is not None and interval.low < 0 < interval.high  # what is shown agrees with what is said
    found = {row["name"]: row["holm"] for row in as_json(report)["variants"]}
    assert found[first]["found"] and not found[second]["found"] and found[second]["p_adjusted"] > 0.05


def test_an_exploratory_sweep_may_have_one_seed_and_gives_no_verdict(tmp_path: Path) -> None:
    path = sweep(tmp_path, "trainer.optim.lr = [1e-3, 4e-3]")
    one = path.read_text().replace("seeds = [0, 1, 2]", "seeds = [0]")
    path.write_text(one)
    assert "1 seed cannot tell the change from luck" in (said := refusal(path)) and "exploratory = true" in said
    path.write_text(f"exploratory = true\n{one}")
    lab = lab_of(tmp_path, path, [0])
    report = compared(make_report(lab.path), {v.name: [0.4] for v in lab.hypothesis.changed})
    text = format_report(report)
    assert "NO VERDICT: exploratory, 1 seed" in text and "Holm" not in text and "higher\n" not in text
    assert report.decision is None and not report.decidable
    told = as_json(report)
    assert told["exploratory"] and told["verdict"] is None
    assert all(row["word"] is None and row["holm"] is None for row in told["variants"])
    assert "exploratory" in format_verdicts([report])
    many = compared(make_report(lab.path), {v.name: [0.4, 0.41, 0.42] for v in lab.hypothesis.changed})
    assert "NO VERDICT" in format_report(many) and not many.decidable  # nor with more seeds
    decides = written(tmp_path)
    decides.write_text(f"exploratory = true\n{decides.read_text()}")
    assert "cannot be exploratory" in refusal(decides)


def asked(tmp_path: Path, name: str, gains: list[float]) -> Report:
    directory = tmp_path / name
    directory.mkdir()
    path = written(directory, prediction='prediction = "higher"', margin="margin = 0.01")
    report = compared(make_report(lab_of(directory, path, [0, 1, 2]).path), {"changed": gains})
    found = report.compared[0].difference
    assert found is not None
    report.decision = decide(report.lab.hypothesis.written.rule, found, report.base_gain)
    return report


def test_verdicts_side_by_side_are_corrected_for_each_other(tmp_path: Path) -> None:
    reports = [asked(tmp_path, f"h{i}", [0.3, 0.301, 0.302]) for i in range(1)]
    reports += [asked(tmp_path, "weak", [0.08, 0.11, 0.14]), asked(tmp_path, "none", [0.0, 0.2, -0.2])]
    assert [r.decision.verdict for r in reports if r.decision] == ["supported", "supported", "undecided"]
    judged = judged_together(reports)
    assert [judged[r.lab.path].found for r in reports] == [True, False, False]
    for report in reports:
        report.lab.path = tmp_path / report.lab.path.parent.name  # as directories beside each other are named
    text = format_verdicts(reports)
    rows = {row.split()[0]: row for row in text.splitlines() if row}
    assert "supported" in rows["h0"] and "undecided" in rows["none"]
    assert "Corrected for 3 hypotheses (Holm)" in text and "weak alone is supported" in text
    told = verdicts_json(reports)
    assert [row["verdict"] for row in told] == ["supported", "supported", "undecided"]
    assert [row["verdict_among"] for row in told] == ["supported", "undecided", "undecided"]
    assert all(row["among"] == 3 for row in told)
    assert judged_together(reports[1:2])[reports[1].lab.path].found  # alone it is what it was


# --- following a sweep ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["vary", "grid", "sets", "exploratory", "loss", "weights"])
def test_what_a_report_says_to_ask_next_can_be_asked(tmp_path: Path, kind: str) -> None:
    keys = {"loss": 'trainer.loss.type = ["dapo", "gspo"]', "weights": WEIGHTS}.get(
        kind, "trainer.optim.lr = [1e-3, 4e-3]"
    )
    path = grid(tmp_path) if kind == "grid" else whole(tmp_path) if kind == "sets" else sweep(tmp_path, keys)
    if kind == "exploratory":
        text = path.read_text().replace("num_examples = 9", "num_examples = 2")
        path.write_text(f"exploratory = true\n{text}")
    if kind == "weights":
        path.write_text(path.read_text().replace("[rule]", '[rule]\nmetric = "success"'))
    lab = lab_of(tmp_path, path, [0, 1, 2])
    strongest = lab.hypothesis.changed[-1]
    gains = {v.name: [0.0, 0.01, -0.01] for v in lab.hypothesis.changed}
    report = compared(make_report(lab.path), gains | {strongest.name: [0.3, 0.31, 0.32]})
    file = write_confirming(report)
    assert file is not None and str(file) in format_next(report, file) and strongest.name in format_next(report, file)
    found = read_hypothesis(file)
    check_alike(found)
    assert found.written.seeds == [3, 4, 5] and found.written.rule.prediction == "higher"
    for one, two in ((found.base, lab.hypothesis.base), (found.changed[0], strongest)):
        was = flat(lab.hypothesis.config(two).model_dump())
        now = flat(found.config(one).model_dump())
        differ = {key for key in {*was, *now} if was.get(key) != now.get(key)}
        assert differ == ({"orchestrator.eval.num_examples"} if kind == "exploratory" else set())
    nothing = compared(make_report(lab.path), gains)
    assert kind == "exploratory" or write_confirming(nothing) is None
