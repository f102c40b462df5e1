"""Losses and advantages of a user's own: found by path, tried, refused in a sentence, trained, resumed, proved."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import warm_process
from support.probe_cases import ARITH, ask, case_of
from support.tiny_runs import WARMSTART, write_config

from airloop.config import load_config, to_toml
from airloop.errors import AirError
from airloop.learn.advantages import Batch
from airloop.learn.batches import Row
from airloop.learn.losses import LOSSES, POLICY_LOSSES
from airloop.runs.run import Run, digest_of
from airloop.training import start
from airloop.watch.display.display import Display

DOCS = Path(__file__).parents[2] / "docs" / "losses.md"
TOKEN = "-terms.advantage * terms.logprobs"


def example() -> str:
    """The file that docs/losses.md shows."""
    found = re.search(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    return found[1]


def written(directory: Path, text: str, name: str = "mine.py") -> str:
    (directory / name).write_text(text, encoding="utf-8")
    return str(directory / name)


def refusal(*argv: str) -> str:
    with pytest.raises(AirError) as refused:
        load_config(list(argv))
    return f"{refused.value.problem}\n{refused.value.fix}"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def other(terms, settings): ...", ["has no 'loss'", "did you mean", "mine.py:other?"]),
        ("loss = 3", ["is a int, not a function", "def loss(terms, settings)"]),
        ("def loss(terms): ...", ["loss(terms) cannot be called with two arguments", "def loss(terms, settings)"]),
        (f"def loss(terms, settings): return {TOKEN}", ["a tensor of shape [12], not a pair"]),
        (f"def loss(terms, settings): return ({TOKEN}).sum(), {{}}", ["shape [] for 12 tokens", "[tokens]"]),
        ("def loss(terms, settings): return terms.logprobs.log(), {}", ["not finite for 12 of 12 ordinary tokens"]),
        ("def loss(terms, settings): return terms.logprobs.detach(), {}", ["terms.logprobs is missing", "detach"]),
        ("def loss(terms, settings): return 0 * terms.logprobs, {}", ["is zero everywhere"]),
        (f"def loss(terms, settings): return {TOKEN}, {{'kl': terms.old}}", ["statistic 'kl', a name that is taken"]),
        (f"def loss(terms, settings): return {TOKEN}, {{'x': 1.0}}", ["a float for the statistic 'x'"]),
        (
            "def loss(terms, settings): return -(terms.advantage - terms.advantage.mean()) * terms.logprobs, {}",
            ["when fewer tokens stand beside it", "micro-batches"],
        ),
        ("def loss(terms, settings):\n    return terms.nothing, {}", ["raises AttributeError", "mine.py:2)"]),
        ("def loss(terms, settings) return", ["mine.py:1 cannot be imported: SyntaxError"]),
    ],
)
def test_a_loss_that_cannot_be_trained_is_refused_in_a_sentence(tmp_path: Path, body: str, said: list[str]) -> None:
    answer = refusal("--trainer.loss.type", written(tmp_path, body) + ":loss")
    assert answer.startswith("--trainer.loss.type ") and all(part in answer for part in said), answer


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def advantage(rewards): ...", ["cannot be called with two arguments", "def advantage(rewards, lengths)"]),
        ("def advantage(rewards, lengths): return rewards.mean()", ["shape []", "one number for each"]),
        ("def advantage(rewards, lengths): return rewards.tolist()", ["a list of 4"]),
        (
            "def advantage(rewards, lengths): return (rewards - rewards.mean()) / rewards.std()",
            ["[nan, nan, nan]", "their standard deviation is 0"],
        ),
        ("def advantage(rewards, lengths): return rewards[4]", ["raises IndexError for a group with the rewards"]),
    ],
)
def test_an_advantage_that_cannot_be_trained_on_is_refused(tmp_path: Path, body: str, said: list[str]) -> None:
    answer = refusal("--trainer.loss.advantage", written(tmp_path, body) + ":advantage")
    assert answer.startswith("--trainer.loss.advantage ") and all(part in answer for part in said), answer


def test_what_is_not_a_file_and_what_has_no_effect(tmp_path: Path) -> None:
    assert "There is no file" in refusal("--trainer.loss.type", str(tmp_path / "none.py:loss"))
    mine = written(tmp_path, example())
    assert f"write {mine}:loss" in refusal("--trainer.loss.type", mine)
    assert "expected a file and a function" in refusal("--trainer.loss.advantage", "median")
    flags = ["--trainer.loss.advantage", f"{mine}:above_median"]
    assert "says for itself whether it divides" in refusal(*flags, "--trainer.loss.scale_rewards")
    assert "does not clip" in refusal("--trainer.loss.type", f"{mine}:loss", "--trainer.loss.clip_high", "0.3")
    once = written(tmp_path, example().replace("weight=", 'once="it is so", weight='), "once.py")
    assert "it is so" in refusal("--trainer.loss.type", f"{once}:loss", "--trainer.loss.passes", "2")


def test_a_path_is_relative_to_its_toml_and_reading_a_run_does_not_import_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, example())
    file = tmp_path / "a.toml"
    file.write_text('[trainer.loss]\ntype = "./mine.py:loss"\nadvantage = "mine.py:above_median"\n')
    config = load_config(["@", str(file)])
    loss = config.trainer.loss
    assert (loss.type, loss.advantage) == (f"{tmp_path}/mine.py:loss", f"{tmp_path}/mine.py:above_median")
    assert (loss.clip_low, loss.clip_high, loss.scale_rewards, loss.scale_by) == (None, None, False, None)
    monkeypatch.chdir(tmp_path)
    assert load_config(["--trainer.loss.type", "./mine.py:loss"]).trainer.loss.type == loss.type
    before = digest_of(config)
    written(tmp_path, "raise SystemExit('imported')")
    (tmp_path / "saved.toml").write_text(to_toml(config))
    assert load_config(["@", "saved.toml"], environments=False) == config
    assert digest_of(config) != before


def test_a_function_by_itself_has_the_clip_of_grpo(tmp_path: Path) -> None:
    body = "def loss(terms, settings):\n    return -(terms.logprobs - terms.old).exp() * terms.advantage, {}\n"
    loss = load_config(["--trainer.loss.type", written(tmp_path, body) + ":loss"]).trainer.loss
    assert (loss.clip_low, loss.clip_high, loss.scale_rewards, loss.scale_by) == (0.2, 0.2, True, "group")


def test_the_former_name_of_what_a_loss_tells_is_understood(tmp_path: Path) -> None:
    body = "from airloop.learn.losses import Parts\nfrom airloop.learn.losses.base import Parts as Same\n\n"
    body += f"def loss(terms, settings) -> tuple:\n    told: Parts | Same = {{}}\n    return {TOKEN}, told\n"
    assert load_config(["--trainer.loss.type", written(tmp_path, body) + ":loss"]).trainer.loss.type.endswith(":loss")


def test_a_loss_with_a_kl_term_has_a_reference_in_every_pass(tmp_path: Path) -> None:
    """Groups that are not trained on are looked at, too, and a budget rehearses: there it was None."""
    body = "def loss(terms, settings):\n    loss = -terms.advantage * terms.logprobs\n"
    body += "    return loss + (terms.logprobs - terms.reference) ** 2 if settings.kl_beta else loss, {}\n"
    flags = {"trainer.loss.type": written(tmp_path, body) + ":loss", "trainer.loss.kl_beta": "0.01"}
    with case_of({**ARITH, **flags}) as case:
        learner, tokens = case.parts.learner, tuple(range(20))
        train, sampled = (False,) * 10 + (True,) * 10, (0.0,) * 10 + (-5.0,) * 10
        one, other = (Row(key, tokens, train, sampled, 1.0, 0.1) for key in ("a#0", "b#0"))
        learner.measure_pass([one])
        report = learner.update(Batch((one,), {"a": 1.0}, 1, (other,)))
    assert report.metrics["grad_norm"] > 0


OWN = """\
[trainer.loss]
type = "./my_loss.py:loss"
advantage = "./my_loss.py:above_median"
passes = 2
overlong = "reply"
overlong_share = 1.0
"""
BITS = ["--orchestrator.env.0.args.max_number", "1", "--orchestrator.env.0.args.split_by", "none"]
BITS += ["--orchestrator.env.0.args.demo_accuracy", "0.8", "--orchestrator.batch_size", "32"]
BITS += ["--orchestrator.rollouts_per_example", "8", "--trainer.optim.lr", "1e-3"]


def example_flags(directory: Path) -> list[str]:
    written(directory, example(), "my_loss.py")
    # after a supervised start replies differ, in length and in whether a sum of two bits is right: so do rewards
    extra = OWN + WARMSTART.replace("steps = 6", "steps = 24")
    return ["@", str(write_config(directory, extra=extra)), "--orchestrator.sampling.max_tokens", "6", *BITS]


@pytest.mark.slow
def test_the_documented_example_trains_and_a_changed_file_is_told(tmp_path: Path) -> None:
    run = start(load_config(example_flags(tmp_path)), Display(quiet=True), skip_proofs=True).run
    learner = [step["learner"] for step in run.metrics("train")]
    assert len(learner) == 2 and all(0 <= one["tapered"] <= 1 and one["grad_norm"] > 0 for one in learner)
    kept = run.status()["code"]
    assert {*kept} == {f"{tmp_path}/my_loss.py:loss", f"{tmp_path}/my_loss.py:above_median"}
    said: list[str] = []
    display = Display(quiet=True)
    display.say = said.append  # type: ignore[method-assign]
    config = run.path / "config.toml"
    config.write_text(config.read_text().replace("max_steps = 2", "max_steps = 3"))
    written(tmp_path, example() + "# changed\n", "my_loss.py")
    start(run.config, display, resume=run.path)
    assert sum("my_loss.py:loss has changed since" in line for line in said) == 1
    assert len(Run.open(run.path).metrics("train")) == 3 and Run.open(run.path).status()["code"] != kept


@pytest.mark.long
@pytest.mark.slow
def test_two_processes_train_it_as_one_does(tmp_path: Path) -> None:
    found = []
    for processes in ("1", "2"):
        (tmp_path / processes).mkdir()
        ranks = ["--trainer.processes", processes, "--model.device", "cpu"]
        done = warm_process.run(["train", "--skip-proofs", *example_flags(tmp_path / processes), *ranks])
        assert done.returncode == 0, done.stderr
        (path,) = (tmp_path / processes).glob("outputs/exp*")
        steps = Run.open(path).metrics("train")
        found.append([[step["learner"][key] for key in ("loss", "grad_norm")] for step in steps])
    assert any(loss for loss, _ in found[0])
    for one, two in zip(*found, strict=True):
        assert one == pytest.approx(two, rel=1e-3, abs=1e-5)


# --- the proofs -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_proofs_hold_it_to_what_they_hold_others_to(tmp_path: Path) -> None:
    mine = written(tmp_path, example())
    flags = {"trainer__loss__type": f"{mine}:loss", "trainer__loss__advantage": f"{mine}:above_median"}
    with case_of(ARITH, **flags) as case:
        for name in ("update_moves", "toy_reward_rises"):
            assert [f.verdict for f in ask(case, name)] == ["pass"]


@pytest.mark.slow
def test_a_wrong_sign_is_caught_in_a_loss_and_in_an_advantage(tmp_path: Path) -> None:
    loss = written(tmp_path, example().replace("return -taper", "return taper"), "loss.py")
    with case_of(ARITH, trainer__loss__type=f"{loss}:loss") as case:
        (finding,) = ask(case, "update_moves")
        assert finding.verdict == "fail" and finding.ids == ("F5",)
    worse = written(tmp_path, example().replace("return rewards - rewards.median()", "return -rewards"), "worse.py")
    with case_of(ARITH, trainer__loss__advantage=f"{worse}:above_median") as case:
        assert ask(case, "update_moves")[0].verdict == "pass"
        assert ask(case, "toy_reward_rises")[0].verdict == "fail"


# --- the table in the docs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_the_docs_have_the_table(name: str) -> None:
    spec = LOSSES[name]
    assert spec.formula and spec.source
    base = "R_i − mean of the others in g" if spec.leave_one_out else "R_i − mean_g"
    advantage = f"({base}) / std_g" if spec.scale_rewards else base
    clips = ", ".join("–" if clip is None else f"{clip:g}" for clip in (spec.clip_low, spec.clip_high))
    weight = spec.weight.formula.replace("|", "\\|")
    row = f"| `{name}` | {spec.formula} | {weight} | {advantage} | {clips} | {spec.source} |"
    assert row in DOCS.read_text(encoding="utf-8").splitlines(), row
