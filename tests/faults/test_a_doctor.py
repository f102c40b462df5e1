"""Family A, as the doctor reports it: the sentences with which a config is refused are findings with ids."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.examined import TINY, findings, results, silent, trouble

from airloop.config import load_config
from airloop.doctor.report import fix_text
from airloop.runs.run import Run


@pytest.fixture
def toml(tmp_path: Path):
    def write(text: str) -> list[str]:
        (tmp_path / "run.toml").write_text(text)
        return ["@", str(tmp_path / "run.toml")]

    return write


@pytest.mark.parametrize(
    ("id", "text", "seen", "fix"),
    [
        (
            "A1",
            "[trainer.model]\nrank = 16\n",
            "rank belongs in [trainer.model.lora]",
            "[trainer.model.lora]\n    rank",
        ),
        ("A1", "batch_size = 8\n", "batch_size belongs in [orchestrator]", "[orchestrator]\n    batch_size = 8"),
        (
            "A2",
            '[orchestrator.buffer]\ntype = "online-difficulty"\n',
            'type = "online-difficulty"',
            "online_difficulty_filtering = true",
        ),
        ("A3", '[trainer.model]\nac = "selective"\n', "expected a table", "[trainer.model.ac]\n    freq = 1"),
        (
            "A4",
            "[trainer.model]\nseq_len = 99\n[orchestrator]\nseq_len = 999\n",
            "there is one length for both",
            "= 999",
        ),
        ("A5", "[orchestrator]\nbatch_size = 30\n", "30 / 8 leaves 6", "batch_size = 32"),
        ("A5", "[orchestrator]\nrollouts_per_example = 1\n", "every advantage zero", "rollouts_per_example = 8"),
        ("A8", '[model]\nchat_template = "lost.jinja"\n', "there is no such file", "relative to the TOML's folder"),
        ("A11", "[trainer.loss]\nscale_rewards = false\nscale_by = 'batch'\n", "has no effect", "delete the line"),
        ("C3", "[trainer.model]\nfsdp_cpu_offload = true\n", "device mismatch", "[trainer.model.ac]\n    freq = 1"),
    ],
)
def test_A1_A2_A3_A4_A5_A8_A11_C3_mistakes_are_findings(toml, id: str, text: str, seen: str, fix: str):
    argv = toml(text)
    ids, finding = trouble(argv)
    assert ids == (id,) and finding.verdict == "fail"
    assert "run.toml:" in finding.seen and seen in finding.seen and finding.why and fix in finding.fix
    assert [r.check.name for r in results(argv) if r.findings] == ["config_is_understood"], "nothing else can be known"


def test_A1_several_mistakes_are_several_findings_and_none_is_said_twice(toml):
    found = findings(toml('batch_size = 8\n[trainer.model]\nac = "selective"\nrank = 4\n'))
    assert sorted(ids for ids, _ in found) == [("A1",), ("A1",), ("A3",)]


def test_A3_a_file_that_is_no_toml_is_a_finding(toml):
    _, finding = trouble(toml("max_steps = \n"))
    assert "this is not valid TOML" in finding.seen


def test_A4_the_longest_real_prompt_is_measured():
    argv = ["--model.name", "tiny:llama", "--seq_len", "500", "--orchestrator.sampling.max_tokens", "100"]
    ids, finding = trouble(argv, "replies_fit")
    assert ids == ("A4",) and finding.verdict == "warn"
    assert finding.why == "after such a prompt a reply is cut off at 49 of 100 tokens"
    assert "has 451 tokens: with max_tokens = 100 that is 551, more than the context of 500" in finding.seen
    assert fix_text(finding) == (
        "set the context to at least 551, or max_tokens to at most 49 (above the first [section]):\n    seq_len = 768"
    )
    corrected = ["--seq_len", "768"]
    assert silent(["--model.name", "tiny:llama", *corrected, "--orchestrator.sampling.max_tokens", "100"], "A4")


def test_A4_a_prompt_that_leaves_no_room_is_refused():
    argv = ["--model.name", "tiny:llama", "--seq_len", "451", "--orchestrator.sampling.max_tokens", "100"]
    ids, finding = trouble(argv, "replies_fit")
    assert ids == ("A4",) and finding.verdict == "fail" and "leaves no room for a reply" in finding.why
    assert finding.lines == {"seq_len": 768}


def test_A4_what_is_warned_of_works(air, tmp_path: Path):
    """A reply is cut to the room that is left; `air train` says so and goes on."""
    flags = ["--seq_len", "28", "--orchestrator.sampling.max_tokens", "20", "--max_steps", "1"]
    flags += ["--orchestrator.batch_size", "4", "--orchestrator.rollouts_per_example", "2"]
    flags += ["--orchestrator.eval.num_examples", "2", "--output_dir", str(tmp_path), "--skip-proofs"]
    code, _, said = air("train", *TINY, *flags)
    assert code == 0, said
    assert "more than the context of 28" in said and "replies to it end after 5 tokens" in said


def test_A4_max_tokens_may_be_all_of_the_context():
    """The engine gives a reply what the prompt has left: that works, so it is a warning."""
    argv = ["--model.name", "tiny:llama", "--seq_len", "1000", "--orchestrator.sampling.max_tokens", "1000"]
    ids, finding = trouble(argv, "replies_fit")
    assert ids == ("A4",) and finding.verdict == "warn"
    assert finding.why == "after such a prompt a reply is cut off at 549 of 1000 tokens"


def test_A4_where_the_model_has_no_longer_context_the_replies_are_shortened():
    argv = ["--model.name", "tiny:llama", "--seq_len", "8192", "--orchestrator.sampling.max_tokens", "8000"]
    _, finding = trouble(argv, "replies_fit")
    assert finding.lines == {"orchestrator.sampling.max_tokens": 8192 - 451}


def test_A5_groups_that_processes_cannot_share_evenly():
    ids, finding = trouble([*TINY, "--trainer.processes", "3", "--model.device", "cpu"], "A5")
    assert ids == ("A5",) and finding.verdict == "warn" and finding.lines == {"orchestrator.batch_size": 48}


def test_A7_the_key_is_asked_for_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name in ("WANDB_API_KEY", "NETRC", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    ids, finding = trouble([*TINY, "--wandb.offline", "false"], "A7")
    assert ids == ("A7",) and finding.verdict == "fail" and "WANDB_API_KEY is not set" in finding.seen
    assert fix_text(finding).endswith("[wandb]\n    offline = true")
    assert silent([*TINY, "--wandb.offline", "true"], "A7") and silent(TINY, "A7")
    monkeypatch.setenv("WANDB_API_KEY", "k")
    assert silent([*TINY, "--wandb.offline", "false"], "A7")


def test_A9_a_run_never_writes_over_another(tmp_path: Path):
    config = load_config([*TINY, "--output_dir", str(tmp_path)])
    runs = [Run.create(config, "arith") for _ in range(3)]
    (runs[0].path / "metrics.jsonl").write_text("kept")
    again = Run.create(config, "arith")
    assert len({run.path for run in [*runs, again]}) == 4
    assert (runs[0].path / "metrics.jsonl").read_text() == "kept" and not (again.path / "metrics.jsonl").exists()


def test_A10_a_learning_rate_too_small_for_lora_is_a_warning_with_the_line():
    small = ["--trainer.optim.lr", "1e-6", "--trainer.optim.max_norm", "0.01"]
    ids, finding = trouble([*TINY, *small], "A10")
    assert ids == ("A10",) and finding.verdict == "warn" and "trainer.optim.lr = 1e-06 with LoRA" in finding.seen
    assert "AdamW's steps have the size of lr" in finding.why  # clipping is not to blame
    assert finding.lines == {"trainer.optim.lr": 1e-4}
    assert silent([*TINY, "--trainer.optim.lr", "1e-5"], "A10")
    assert silent([*TINY, *small, "--trainer.model.train", "full"], "A10")


def test_A11_what_has_no_effect_is_told():
    ids, finding = trouble([*TINY, "--trainer.loss.clip_high", "0.3"], "A11")
    assert ids == ("A11",) and "nothing is ever clipped" in finding.why


def test_A_a_good_config_is_silent_in_every_fast_check():
    assert silent(TINY)


def test_A4_a_cause_that_no_asked_check_answers_for_is_headed_by_what_was_asked(tmp_path: Path):
    """`--only A4` of a model without a tokenizer: the block is A4's, and B8 says where the cause belongs."""
    (tmp_path / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    ids, finding = trouble([*TINY, "--model.name", str(tmp_path)], "A4")
    assert ids == ("A4", "B8") and "tokenizer" in finding.seen
    ids, _ = trouble([*TINY, "--model.name", str(tmp_path)], "A4,B8")
    assert ids == ("B8",)
