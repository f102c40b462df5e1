"""Family A: what people wrote in their configs, and the answer each gets. A4's measured part and A6 are the
doctor's, A9 is the run directory's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airloop.config import describe_keys, load_config, to_toml
from airloop.errors import AirError
from airloop.sinks.wandb_sink import WANDB, WandbConfig


@pytest.fixture
def refuse(tmp_path: Path):
    """The text with which a TOML is refused; checks that the file is named."""

    def run(text: str, *flags: str) -> str:
        file = tmp_path / "run.toml"
        file.write_text(text)
        with pytest.raises(AirError) as caught:
            load_config(["@", str(file), *flags])
        return str(caught.value).replace(str(file), "run.toml")

    return run


def test_A1_rank_in_trainer_model(refuse):
    answer = refuse("max_steps = 3\n\n[trainer.model]\nseq_len = 2048\nrank = 16\n")
    assert answer.startswith("run.toml:5: rank = 16 in [trainer.model]: unknown key")
    assert "[trainer.model.lora]\n    rank = 16" in answer


def test_A1_batch_size_at_top_level(refuse):
    answer = refuse("batch_size = 10\n[orchestrator]\nrollouts_per_example = 5\n")
    assert answer.startswith("run.toml:1: batch_size = 10 at top level")
    assert "[orchestrator]\n    batch_size = 10" in answer
    assert "mistakes" not in answer, "the default batch_size, which the fix replaces, must not be complained of"


@pytest.mark.parametrize(
    ("text", "corrected"),
    [
        ("[model]\nlr = 1e-5\n", "[trainer.optim]\n    lr = 1e-5"),
        ("[orchestrator]\nmax_tokens = 64\n", "[orchestrator.sampling]\n    max_tokens = 64"),
        ("[lora]\nrank = 4\nalpha = 8\n", "[trainer.model.lora]\n    rank = 4\n    alpha = 8"),
        ("[orchestrator]\nid = 'arith'\n", '[[orchestrator.env]]\n    id = "arith"'),
        ("[trainer.model]\nmax_model_len = 64\n", "above the first [section] instead\n    seq_len = 64"),
        ("[trainer.optim]\nmax_steps = 5\n", "above the first [section] instead\n    max_steps = 5"),
        ("[orchestrator]\nmax_turns = 5\n", "[[orchestrator.env]]\n    args = { max_turns = 5 }"),
    ],
)
def test_A1_keys_in_the_wrong_section(refuse, text: str, corrected: str):
    assert corrected in refuse(text)


def test_A1_as_flag_gets_a_flag(refuse):
    answer = refuse("", "--trainer.model.rank", "16")
    assert "--trainer.model.rank 16: unknown key" in answer
    assert "write --trainer.model.lora.rank 16" in answer


def test_A1_environment_argument_keeps_the_other_arguments(refuse):
    answer = refuse('[[orchestrator.env]]\nid = "mlgym"\nmax_turns = 5\nargs = { env_gpu = "7" }\n')
    assert 'args = { env_gpu = "7", max_turns = 5 }' in answer


def test_A2_buffer_type(refuse):
    answer = refuse('[orchestrator.buffer]\ntype = "online-difficulty"\n')
    assert 'run.toml:2: type = "online-difficulty" in [orchestrator.buffer]' in answer
    assert "[orchestrator.buffer]\n    online_difficulty_filtering = true" in answer


@pytest.mark.parametrize(
    ("text", "corrected"),
    [
        ("[trainer.optim]\nlearning_rate = 1e-5\n", "lr = 1e-5"),
        ("[orchestrator]\nnum_generations = 8\n", "rollouts_per_example = 8"),
        ("[orchestrator]\nroll_outs_per_example = 8\n", "rollouts_per_example = 8"),
        ("[trainer.loss]\nloss_type = 'dr_grpo'\n", '[trainer.loss]\n    type = "dr_grpo"'),
        ("[trainer.loss]\ntype = 'dr-grpo'\n", 'type = "dr_grpo"'),
        ("[trainer.model]\ngradient_checkpointing = true\n", "[trainer.model.ac]\n    freq = 1"),
    ],
)
def test_A2_keys_of_other_tools(refuse, text: str, corrected: str):
    assert corrected in refuse(text)


def test_A2_nothing_near_lists_the_keys(refuse):
    assert "[trainer.optim] has lr, weight_decay, max_norm" in refuse("[trainer.optim]\nzzzz = 1\n")


def test_A2_old_place_of_lora(refuse, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "old.toml").write_text("[trainer.model.experimental.lora]\nrank = 4\nalpha = 32\n")
    lora = load_config(["@", str(tmp_path / "old.toml")]).trainer.model.lora
    assert (lora.rank, lora.alpha) == (4, 32)
    (tmp_path / "whole.toml").write_text(
        "max_steps = 9\n[trainer.model.experimental.lora]\nrank = 4\nalpha = 32\n"
        "[orchestrator]\nbatch_size = 8\nrollouts_per_example = 4\n[[orchestrator.env]]\nid = 'arith'\n"
    )
    assert load_config(["@", str(tmp_path / "whole.toml")]).trainer.optim.lr == 1e-6
    assert "what it leaves out is as it is there: " in caplog.text and "trainer.optim.lr = 1e-6" in caplog.text
    answer = refuse("[trainer.model.experimental.lora]\nrnak = 8\n")
    assert answer.startswith("run.toml:1:") and "[trainer.model.lora]\n    rank = 8" in answer
    answer = refuse("[trainer.model.experimental]\nlora = { rank = 8 }\nfused = true\n")
    assert "the experimental section is gone" in answer and "fused: there is no such key" in answer


@pytest.mark.parametrize("section", ["model", "trainer.model"])
def test_A2_fsdp_cpu_offload(refuse, section: str):
    answer = refuse(f"[{section}]\nfsdp_cpu_offload = true\n")
    assert "device mismatch" in answer
    assert "[trainer.model.ac]\n    freq = 1" in answer


@pytest.mark.parametrize("section", ["orchestrator", "trainer.model.lora", "inference"])
def test_A2_lora_name(refuse, section: str):
    answer = refuse(f'[{section}]\nlora_name = "r8"\n')
    assert "one adapter, and it is always the served one" in answer
    assert "fix: delete the line" in answer


def test_A2_env_worker_logs(refuse):
    answer = refuse('[orchestrator.log]\nlevel = "debug"\nenv_worker_logs = true\n')
    assert answer.startswith("run.toml:3:")
    assert "always reach the main log" in answer and "fix: delete the line" in answer


def test_A2_auto_tool_choice(refuse, tmp_path: Path):
    (tmp_path / "ok.toml").write_text("[inference.model]\nenable_auto_tool_choice = true\nenforce_eager = true\n")
    assert load_config(["@", str(tmp_path / "ok.toml")]).inference.model.enforce_eager is True
    answer = refuse("[inference.model]\nenable_auto_tool_choice = false\nenforce_eager = false\n")
    assert answer.startswith("run.toml:2: enable_auto_tool_choice = false")
    assert "air always leaves it to the model" in answer
    assert "enforce_eager" not in answer.splitlines()[0]  # decode graphs: asked for or not, both are understood


@pytest.mark.parametrize("value", ['"selective"', "true", "1"])
def test_A3_scalar_for_table(refuse, value: str):
    answer = refuse(f"[trainer.model]\nac = {value}\n")
    assert answer.startswith(f"run.toml:2: ac = {value} in [trainer.model]: expected a table")
    assert "[trainer.model.ac]\n    freq = 1" in answer


def test_A3_model_as_a_string(refuse):
    assert '[model]\n    name = "Qwen/Qwen3-4B"' in refuse('model = "Qwen/Qwen3-4B"\n')


def test_A3_single_brackets_for_an_environment(refuse):
    answer = refuse('[orchestrator.env]\nid = "arith"\n')
    assert "double brackets" in answer and '[[orchestrator.env]]\n    id = "arith"' in answer


def test_A4_trajectories_longer_than_the_trainer_takes(refuse):
    answer = refuse("[trainer.model]\nseq_len = 1024\n[orchestrator]\nseq_len = 4096\n")
    assert "run.toml:2" in answer and "write above the first [section] instead\n    seq_len = 4096" in answer


def test_A5_batch_not_divisible(refuse):
    answer = refuse("[orchestrator]\nbatch_size = 30\nrollouts_per_example = 8\n")
    assert answer.startswith("run.toml:2, run.toml:3: batch_size = 30")
    assert "[orchestrator]\n    batch_size = 32" in answer


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo"])
def test_A5_group_of_one(refuse, loss: str):
    answer = refuse(f'[orchestrator]\nrollouts_per_example = 1\n[trainer.loss]\ntype = "{loss}"\n')
    assert "every advantage zero" in answer and "rollouts_per_example = 8" in answer


def test_A7_wandb_without_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name in ("WANDB_API_KEY", "NETRC", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    online = WandbConfig(project="p", offline=False)
    assert WANDB.missing(WandbConfig()) is None
    lack = WANDB.missing(online)
    assert lack is not None and lack.instead == {"offline": True}
    (tmp_path / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password k\n")
    assert WANDB.missing(online) is None
    (tmp_path / ".netrc").unlink()
    monkeypatch.setenv("WANDB_API_KEY", "k")
    assert WANDB.missing(online) is None


def test_A8_paths_do_not_depend_on_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder, elsewhere = tmp_path / "configs", tmp_path / "elsewhere"
    for path in (folder / "adapter", elsewhere):
        path.mkdir(parents=True)
    (folder / "chat.jinja").write_text("{{ messages }}")
    text = '[model]\nname = "./weights"\nchat_template = "chat.jinja"\nadapter = "adapter"\n'
    (folder / "a.toml").write_text(text + '[[orchestrator.env]]\nid = "arith"\n')
    (folder / "weights").mkdir()
    loaded = []
    for cwd, name in ((folder, "a.toml"), (tmp_path, "configs/a.toml"), (elsewhere, str(folder / "a.toml"))):
        monkeypatch.chdir(cwd)
        loaded.append(load_config(["@", name]))
    assert loaded[0] == loaded[1] == loaded[2]
    assert loaded[0].model.chat_template == str(folder / "chat.jinja")
    assert loaded[0].model.adapter == str(folder / "adapter")
    assert loaded[0].model.name == str(folder / "weights")
    (elsewhere / "resolved.toml").write_text(to_toml(loaded[0]))
    assert load_config(["@resolved.toml"]) == loaded[0]


def test_A8_flags_are_relative_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat.jinja").write_text("x")
    assert load_config(["--model.chat-template", "chat.jinja"]).model.chat_template == str(tmp_path / "chat.jinja")


def test_A8_ready_configs_are_found_from_anywhere(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(os.sep)
    assert load_config(["arith"]).model.name == "tiny:llama"
    assert load_config(["mlgym/small", "--max_steps", "3"]).max_steps == 3


def test_A8_missing_template_says_where_it_looked(refuse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    answer = refuse('[model]\nchat_template = "no.jinja"\n')
    assert answer.startswith('run.toml:2: chat_template = "no.jinja"')
    assert str(tmp_path / "no.jinja") in answer and str(tmp_path / "cwd" / "no.jinja") in answer


def test_A10_small_lr_with_lora_warns():
    flags = ["--trainer.optim.lr", "1e-6"]
    assert "small for LoRA" in load_config(flags).warnings()[0]
    assert load_config([*flags, "--trainer.model.train", "full"]).warnings() == []
    assert load_config(["--trainer.optim.lr", "1e-5"]).warnings() == []


def test_A10_warming_up_to_the_end_warns():
    (told,) = load_config(["--max_steps", "80", "--trainer.optim.warmup_steps", "1000"]).warnings()
    assert "to 8% of lr" in told and "warmup_steps = 8" in told
    assert load_config(["--max_steps", "80", "--trainer.optim.warmup_steps", "79"]).warnings() == []


def test_A11_an_adapter_that_is_not_there_warns():
    full = ["--trainer.model.train", "full"]
    (told,) = load_config([*full, "--trainer.model.lora.rank", "64"]).warnings()
    assert "rank = 64" in told and "there is no adapter" in told
    assert load_config(full).warnings() == []


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    section=st.sampled_from(sorted({key.section for key in describe_keys()})),
    key=st.from_regex(r"[a-z][a-z_]{0,11}", fullmatch=True),
    value=st.one_of(st.integers(), st.booleans(), st.text(max_size=5)),
)
def test_A11_no_key_is_silently_ignored(section: str, key: str, value: object):
    """Whatever is written anywhere is either in the resolved config or refused by name."""
    name = f"{section}.{key}".lstrip(".")
    if name in {known.name for known in describe_keys()} or any(
        known.section.startswith(name) for known in describe_keys()
    ):
        return
    with pytest.raises(AirError) as caught:
        load_config([f"--{name}={value}"])
    assert key.replace("_", "-") in str(caught.value).replace("_", "-")


@pytest.mark.parametrize(
    ("text", "corrected", "never"),
    [
        (
            "inference_gpu_ids = [0, 1, 2]\ntrainer_gpu_ids = [2, 3]\n",
            "inference_gpu_ids = [0, 1, 2, 3]\n    trainer_gpu_ids = [0, 1, 2, 3]",
            "= [3]\n",
        ),
        ("[trainer.loss]\nbeta = 0.0\n", "kl_beta = 0.0", "betas"),
        ("[orchestrator]\ngroup_size = 16\n", "rollouts_per_example = 16", "delete the line"),
        ("[trainer.loss]\ntype = 'bnpo'\n", 'type = "dapo"\n    clip_high = 0.2', "gspo"),
    ],
)
def test_A12_corrections_load_and_keep_the_meaning(refuse, tmp_path: Path, text: str, corrected: str, never: str):
    answer = refuse(text)
    fix = answer.partition("fix: ")[2]
    assert corrected in answer and never not in fix
    (tmp_path / "again.toml").write_text("\n".join(line for line in fix.splitlines() if line.startswith("    ")))
    assert load_config(["@", str(tmp_path / "again.toml")])


def test_A13_what_is_not_known_is_asked_for(refuse):
    """A file for another trainer: neither our default environment nor our LoRA takes the place of its own."""
    text = "max_steps = 5\n[model]\nname = 'm'\n[orchestrator]\nbatch_size = 32\ngroup_size = 16\n"
    answer = refuse(text + "[[orchestrator.train.source]]\nenv.taskset.id = 'wordle'\n")
    assert "run.toml:7: the environment 'wordle' is not known here" in answer and "arith, gsm8k" in answer
    assert "rollouts_per_example = 16" in answer and 'train = "full"' in answer and "lr = 1e-6" in answer
    assert 'id = "tune"' not in answer
