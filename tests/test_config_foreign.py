"""Files and command lines of other trainers: every key has an answer, every correction loads, and none changes what
was meant."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from airloop.config import ALIASES, Config, Refused, describe_keys, load_config
from airloop.config.foreign import FOREIGN_KEYS, FOREIGN_VALUES
from airloop.config.foreign_prime import PRIME
from airloop.config.foreign_verl import VERL
from airloop.config.sources import leaves
from airloop.config.toml import toml_value
from airloop.text.spelling import distance, misspelt

ARITH = '\n[[orchestrator.env]]\nid = "arith"\n'
KNOWN = "arith, gsm8k, gsm8k-calculator, mlgym, musique, program, prompts, soup, tune"


def refused(folder: Path, text: str, *flags: str) -> Refused:
    (folder / "run.toml").write_text(text)
    with pytest.raises(Refused) as caught:
        load_config(["@", str(folder / "run.toml"), *flags])
    return caught.value


def printed_toml(fix: str) -> str:
    return "\n".join(line[4:] for line in fix.splitlines() if line.startswith("    "))


def printed_flags(fix: str) -> list[str]:
    found = re.search(r"write (--[\w.]+ .*?)(, or in TOML)?$", fix.splitlines()[0])
    return shlex.split(found[1]) if found else []


def pasted(folder: Path, found: Refused, also: str = ARITH) -> Config:
    """The printed corrections, by themselves, as a file and flags."""
    tree: dict[str, Any] = tomllib.loads(also)
    flags = [word for mistake in found.mistakes for word in printed_flags(mistake.fix)]
    for mistake in found.mistakes if not flags else ():
        merge(tree, tomllib.loads(printed_toml(mistake.fix)))
    lines = [f"{key} = {toml_value(value)}" for key, value in tree.items()]
    (folder / "pasted.toml").write_text("\n".join(lines))
    return load_config(["@", str(folder / "pasted.toml"), *flags])


def merge(tree: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(tree.get(key), dict):
            merge(tree[key], value)
        else:
            tree[key] = value


def sample(key: str) -> list[Any]:
    """Values that someone might give to a key that becomes this one."""
    by_type = {"int": [4], "float": [0.5], "bool": [True, False], "str": ["some"], "[int, …]": [[0]]}
    known = {described.name: described.type for described in describe_keys()}
    kind = known.get(key, "")
    if " | " in kind:
        return [tomllib.loads(f"v = {choice}")["v"] for choice in kind.split(" | ")]
    return by_type.get(kind, [["a"]] if kind.startswith("[str") else [1])


ENTRIES = [(name, alias) for name, alias in {**PRIME, **VERL}.items()]


@pytest.mark.long
@pytest.mark.parametrize(("name", "alias"), ENTRIES, ids=[name for name, _ in ENTRIES])
def test_every_correction_of_the_paths_loads(tmp_path: Path, name: str, alias: Any):
    path = name.replace(".**", ".anything").replace(".*.", ".").split(".")
    values = (
        sample(alias.key) if alias.key else [1, 0, "some", True, False, {"lora": {"rank": 4}}, [{"type": "gibberish"}]]
    )
    answered = 0
    for value in values:
        inner = toml_value(value)
        text = f"{'.'.join(path)} = {inner}\n"
        if name.startswith("orchestrator.env.*."):
            text = f'[[orchestrator.env]]\nid = "arith"\n{path[-1]} = {inner}\n'
        if name == "trainer.model.experimental" and value == {"lora": {"rank": 4}}:
            continue  # it is read as it stands
        found = refused(tmp_path, text)
        if "chat_template" in name:
            continue  # a file that must be there
        assert pasted(tmp_path, found)
        answered += 1
    assert answered or "chat_template" in name


@pytest.mark.parametrize("name", sorted({*ALIASES, *FOREIGN_KEYS}))
def test_every_correction_of_the_names_loads(tmp_path: Path, name: str):
    alias = ALIASES.get(name) or FOREIGN_KEYS[name]
    for value in sample(alias.key) if alias.key and alias.value is None else ["true", "false", "0.5", "1"]:
        text = value if isinstance(value, str) else toml_value(value)
        if name == "datasets":
            text = "a,b,train"
        with pytest.raises(Refused) as caught:
            load_config([f"--{name}={text}"])
        assert pasted(tmp_path, caught.value, "" if name == "datasets" else ARITH)


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, known in FOREIGN_VALUES.items() for value in known])
def test_every_correction_of_the_values_loads(tmp_path: Path, key: str, value: str):
    found = refused(tmp_path, f'{key} = "{value}"\n')
    assert len(found.mistakes) == 1 and pasted(tmp_path, found)


def test_every_key_of_the_tables_exists():
    known = {key.name for key in describe_keys()} | {"orchestrator.env.0.args.datasets"}
    for alias in (*ALIASES.values(), *FOREIGN_KEYS.values(), *PRIME.values(), *VERL.values()):
        assert not alias.key or alias.key in known, alias
    for values in FOREIGN_VALUES.values():
        for answer in values.values():
            assert {".".join(map(str, path)) for path in leaves(answer.changes)} <= known


@pytest.mark.parametrize(
    ("argv", "right", "never"),
    [
        ('--monitors.wandb.tags ["a"]', "--wandb.tags", "args"),
        ("--trainer.optim.type adamw", "that is what air does", "loss"),
        ("--trainer.optim.type muon", "muon has no equivalent", "loss.type"),
        ("--beta 0.0", "--trainer.loss.kl_beta 0.0", "betas"),
        ("--trainer.loss.type bnpo", "--trainer.loss.type dapo --trainer.loss.clip_high 0.2", "gspo"),
        ("--loss-type bnpo", "--trainer.loss.type dapo", "gspo"),
        ("--model.device tpu", "your choice: write one of these", "--model.device cpu"),
        ("--orchestrator.buffer.env_ratios [1,2]", "ratio = 1, ratio = 2", "fix: leave it out"),
        ("--num_iterations 2", "--trainer.loss.passes 2", "leave it out"),
        ("--lr_scheduler_type cosine", "--trainer.optim.schedule cosine", "your choice"),
        ("--lr_scheduler_type polynomial", "no equivalent", "fix: leave it out"),
        ("--lr_scheduler_type constant", "is constant", "your choice"),
        ("--zero_truncated_completions", "no equivalent", "fix: leave it out"),
        ("--entity me", "--wandb.entity me", "your choice"),
        ("--ckpt.resume_step 5", "air train --resume RUN", "your choice"),
        ("--orchestrator.group_size 16", "--orchestrator.rollouts_per_example 16", "leave it out"),
        ("--dataset_name x", "belong to the environment", "fix: leave it out"),
        ("--reward_funcs x", "belong to the environment", "fix: leave it out"),
        ("--model_name_or_path x", "--model.name x", "leave it out"),
        ("--epsilon 0.3", "--trainer.loss.clip_low 0.3 --trainer.loss.clip_high 0.3", "leave it out"),
        ("--inference.gpu_memory_utilisation 0.4", "--inference.gpu_memory_utilization 0.4", "server"),
        ("--orchestrator.sampling.max_token 5", "--orchestrator.sampling.max_tokens 5", "your choice"),
        ("--trainer.optim.lr_ abc", "your choice", "--trainer.optim.lr abc"),
        ("data.train_batch_size=256 actor_rollout_ref.rollout.n=8", "256 × 8 = 2048", "leave it out"),
        ("trainer.n_gpus_per_node=4", "--trainer_gpu_ids '[0, 1, 2, 3]'", "leave it out"),
    ],
)
def test_nothing_is_guessed_across_meanings(argv: str, right: str, never: str):
    with pytest.raises(Refused) as caught:
        load_config(argv.split())
    assert right in str(caught.value) and never not in str(caught.value)


TWO = '[[orchestrator.env]]\nid = "arith"\n[[orchestrator.env]]\nid = "tune"\n'


@pytest.mark.parametrize("given", ["[1, 2.5]", "[1.0, 2.5]"])
def test_each_environment_gets_its_part_of_env_ratios(tmp_path: Path, given: str):
    found = refused(tmp_path, f"[orchestrator.buffer]\nenv_ratios = {given}\n{TWO}")
    (about,) = [mistake for mistake in found.mistakes if "env_ratios" in mistake.problem]
    assert not about.choice
    each = tomllib.loads(printed_toml(about.fix))["orchestrator"]["env"]
    own = tomllib.loads(TWO)["orchestrator"]["env"]
    (tmp_path / "pasted.toml").write_text(
        f"orchestrator.env = {toml_value([a | b for a, b in zip(own, each, strict=True)])}"
    )
    config = load_config(["@", str(tmp_path / "pasted.toml")])
    assert [(env.id, env.ratio) for env in config.orchestrator.env] == [("arith", 1.0), ("tune", 2.5)]

    flags = ["--orchestrator.env.0.id=arith", "--orchestrator.env.1.id=tune"]
    with pytest.raises(Refused) as caught:
        load_config([*flags, f"--orchestrator.buffer.env_ratios={given}"])
    config = load_config([*flags, *(word for one in caught.value.mistakes for word in printed_flags(one.fix))])
    assert [env.ratio for env in config.orchestrator.env] == [1.0, 2.5]


@pytest.mark.parametrize("given", ["[1]", "[1, 2, 3]", '["a", 2]', "[0, 1]"])
def test_ratios_that_fit_no_environments_are_the_users_to_say(tmp_path: Path, given: str):
    found = refused(tmp_path, f"[orchestrator.buffer]\nenv_ratios = {given}\n{TWO}")
    (about,) = [mistake for mistake in found.mistakes if "env_ratios" in mistake.problem]
    assert about.choice and "orchestrator.env.0.ratio" not in about.changes


def test_the_ratio_of_a_source_of_tasks_is_its_environments(tmp_path: Path):
    sources = "".join(
        f'[[orchestrator.train.source]]\nid = "{id}"\nratio = {n}\n' for id, n in (("arith", 1), ("tune", 3))
    )
    found = refused(tmp_path, f"max_steps = 2\n{sources}[orchestrator]\ngroup_size = 4\n")
    about = [mistake for mistake in found.mistakes if "[[orchestrator.train.source]]" in mistake.problem]
    assert [printed_toml(mistake.fix).splitlines()[-1] for mistake in about] == ["ratio = 1", "ratio = 3"]
    assert not any(mistake.choice for mistake in about)


def test_misspellings_are_small():
    assert distance("gpso", "gspo") == 1 and distance("a", "") == 1
    assert misspelt("roll_outs_per_example", ["rollouts_per_example"]) == "rollouts_per_example"
    assert misspelt("tags", ["args"]) is None and misspelt("bnpo", ["gspo", "grpo"]) is None
    assert misspelt("tpu", ["cpu"]) is None and misspelt("clip_hi", ["clip_high", "clip_low"]) is None
    assert misspelt("topp", ["top_p", "top_k"]) == "top_p" and misspelt("topx", ["top_p", "top_k"]) is None


NEWER = """\
max_steps = 20
seq_len = 2048

[deployment]
num_train_gpus = 1
num_infer_gpus = 3

[model]
name = "Qwen/Qwen3-0.6B"

[monitors.wandb]
project = "p"
tags = ["t"]

[trainer.optim]
type = "adamw"
lr = 3e-6

[trainer.model]
attn = "flash_attention_2"

[orchestrator]
batch_size = 128
group_size = 16

[orchestrator.train.sampling]
max_completion_tokens = 128

[[orchestrator.train.source]]
name = "sums"

[orchestrator.train.source.env.taskset]
id = "{env}"

[orchestrator.train.source.env.agent.runtime]
type = "subprocess"

[inference.vllm]
max_model_len = 2048
tensor_parallel_size = 2
"""


def test_a_newer_file_is_corrected_in_one_round_to_the_run_that_it_says(tmp_path: Path):
    found = refused(tmp_path, NEWER.replace("{env}", "gsm8k"))
    assert not any(mistake.choice for mistake in found.mistakes), found
    lines = [int(m[1]) for mistake in found.mistakes if (m := re.search(r"run\.toml:(\d+):", mistake.problem))]
    assert lines == sorted(lines) and len(lines) == len(found.mistakes) - 1, "all but the defaults have their line"
    own = 'max_steps = 20\nseq_len = 2048\nmodel.name = "Qwen/Qwen3-0.6B"\n[trainer.optim]\nlr = 3e-6\n'
    config = pasted(tmp_path, found, own + "[orchestrator]\nbatch_size = 128\n")
    assert [env.id for env in config.orchestrator.env] == ["gsm8k"] and config.orchestrator.env[0].title == "sums"
    assert config.orchestrator.rollouts_per_example == 16 and config.orchestrator.sampling.max_tokens == 128
    assert config.trainer.model.train == "full" and config.trainer.optim.lr == 3e-6 and config.gpus == [0, 1, 2, 3]
    assert config.trainer.optim.weight_decay == 0.01 and config.seq_len == 2048


def test_an_environment_that_is_not_known_is_refused_beside_everything_else(tmp_path: Path):
    found = refused(tmp_path, NEWER.replace("{env}", "reverse-text"))
    (about,) = [mistake for mistake in found.mistakes if "reverse-text" in mistake.problem]
    assert "run.toml:29: the environment 'reverse-text' is not known here" in about.problem
    assert KNOWN in about.fix and about.choice and about.id == "A13"
    assert len(found.mistakes) > 6 and '"tune"' not in str(found)


@pytest.mark.parametrize("tail", ["", '[[orchestrator.env]]\nid = "wordle"\n'])
def test_the_default_environment_is_never_filled_in(tmp_path: Path, tail: str):
    found = refused(tmp_path, f'max_steps = 3\n[model]\nname = "tiny:llama"\ndevice = "cpu"\n{tail}')
    (mistake,) = found.mistakes
    assert KNOWN in mistake.fix and ("wordle" in mistake.problem or "no environment" in mistake.problem)


def test_a_misspelt_environment_is_corrected(tmp_path: Path):
    assert 'id = "musique"' in refused(tmp_path, '[[orchestrator.env]]\nid = "musiqe"\n').fix


def test_A14_all_arguments_of_environments_in_one_round(tmp_path: Path):
    text = """\
max_stepss = 3
[[orchestrator.env]]
id = "soup"
args = { mod = "mvp", difficulty = "impossible", timeout_s = "long", seed = 3 }
[[orchestrator.env]]
id = "musique"
[orchestrator.env.args]
retriever = "lexical"
embedding_model = "x"
"""
    found = refused(tmp_path, text)
    told = [mistake.problem.replace(str(tmp_path), "") for mistake in found.mistakes]
    assert [re.match(r"/run\.toml:(\d+)", problem)[1] for problem in told] == ["1", "4", "4", "4", "7"]  # type: ignore[index]
    assert 'args = { mode = "mvp", difficulty = "impossible", timeout_s = "long", seed = 3 }' in str(found)
    assert "argument ''" not in str(found) and 'retriever = "lexical" uses no embedding_model' in told[-1]


def test_a_run_whose_environment_is_gone_is_still_read(tmp_path: Path):
    (tmp_path / "config.toml").write_text('[model]\nname = "m"\n[[orchestrator.env]]\nid = "gone"\nargs = { x = 1 }\n')
    config = load_config(["@", str(tmp_path / "config.toml")], environments=False)
    assert config.orchestrator.env[0].id == "gone"


SEEDS_V8 = """\
max_steps = 1000
inference_gpu_ids = [0]
trainer_gpu_ids = [1]

[model]
name = "Qwen/Qwen2.5-7B-Instruct"

[trainer.model.experimental.lora]
rank = 8
alpha = 32

[orchestrator]
batch_size = 128
rollouts_per_example = 8
seq_len = 8192
"""


def test_the_two_gpu_file_of_the_seeds_keeps_its_meaning(tmp_path: Path):
    """It loads as it is; what it leaves out is what it is there."""
    assert "no environment" in str(refused(tmp_path, SEEDS_V8, "--wandb.project", "p"))
    path = tmp_path / "v8.toml"
    path.write_text(SEEDS_V8 + '[[orchestrator.env]]\nid = "seconds-0/beautiful-soup-env"\n')
    config = load_config(["@", str(path), "--wandb.project", "p"])
    assert (config.gpus, config.inference_gpu_ids, config.inference.backend) == ([1], [0], "vllm")
    lora = config.trainer.model.lora
    assert config.trainer.model.train == "lora" and (lora.rank, lora.alpha) == (8, 32)
    assert config.trainer.optim.lr == 1e-6 and config.orchestrator.sampling.max_tokens == config.seq_len == 8192


def test_an_old_place_does_not_let_pass_what_has_to_be_corrected(tmp_path: Path):
    text = SEEDS_V8 + '[weight_broadcast]\ntype = "nccl"\n[[orchestrator.env]]\nid = "soup"\n'
    told = str(refused(tmp_path, text))
    assert "weight_broadcast" in told and "lr = 1e-6" in told
    told = str(refused(tmp_path, text.replace("[orchestrator]", "[trainer.model.lora]\nrank = 16\n[orchestrator]")))
    assert "trainer.model.lora.rank is 16 already, not 8" in told


def test_the_command_lines_of_the_seeds_are_answered_in_one_round(tmp_path: Path):
    line = """--num-processes 3 --config-file configs/zero3.yaml scripts/train_musique.py train
        --model Qwen/Qwen2.5-7B-Instruct --datasets a,b,train[:256] --bf16 --loss-type grpo --lora-r 16
        --lora-alpha 32 --batch-size 16 --num-generations 8 --gradient-accumulation-steps 4 --scale-rewards
        --max-grad-norm 0.01 --learning-rate 1e-5"""
    with pytest.raises(Refused) as caught:
        load_config(line.split())
    config = pasted(tmp_path, caught.value, "")
    assert config.model.name == "Qwen/Qwen2.5-7B-Instruct" and config.orchestrator.env[0].id == "musique"
    assert config.orchestrator.batch_size == 16 * 4 * 3 and config.orchestrator.rollouts_per_example == 8
    assert config.trainer.optim.lr == 1e-5 and config.trainer.model.lora.rank == 16
    assert "scripts/train_musique.py" in str(caught.value)


def test_what_the_file_says_itself_is_not_written_over(tmp_path: Path):
    found = refused(tmp_path, "[orchestrator.eval]\ninterval = 10\n[orchestrator.val]\ninterval = 5\n")
    assert "orchestrator.eval.interval is 10 already, not 5" in str(found) and found.mistakes[0].choice


def test_a_run_is_called_after_its_name_or_its_environments():
    flags = ["--orchestrator.env.0.id=arith", "--orchestrator.env.1.id=gsm8k"]
    assert load_config(flags).task == "arith-gsm8k" and load_config([*flags, "--run_name", "both"]).task == "both"


def test_an_old_file_without_a_foreign_key_is_known_by_its_bare_headers(tmp_path: Path):
    text = 'max_steps = 2\n[model]\nname = "m"\n[orchestrator]\nbatch_size = 8\nrollouts_per_example = 4\n'
    found = refused(tmp_path, f"{text}[trainer.optim]\nlr = 3e-6\n[inference]\n{ARITH}")
    assert len(found.mistakes) == 1 and 'train = "full"' in found.fix and "lr" not in found.fix
    (tmp_path / "ours.toml").write_text(text + ARITH)
    assert load_config(["@", str(tmp_path / "ours.toml")]).trainer.model.train == "lora"


def test_arguments_of_a_known_environment_that_ours_has_not_are_a_choice(tmp_path: Path):
    text = NEWER.replace('id = "{env}"', 'id = "arith"\nmax_nmber = 30\nmin_turns = 3')
    (about,) = [m for m in refused(tmp_path, text).mistakes if "[[orchestrator.train.source]]" in m.problem]
    assert about.choice and "min_turns: arith has no such arguments" in about.problem
    assert "args = { max_number = 30 }" in about.fix


def test_the_bench_follows_what_is_printed(tmp_path: Path):
    (tmp_path / "unknown.toml").write_text(NEWER.replace("{env}", "reverse-text"))
    (tmp_path / "known.toml").write_text(NEWER.replace("{env}", "gsm8k"))
    (tmp_path / "other.toml").write_text("[tool]\nx = 1\n")
    bench = Path(__file__).parents[1] / "bench" / "configs.py"
    done = subprocess.run([sys.executable, str(bench), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "2 RL files: 2 same; 1 name an unknown environment, 0 ask for choices"


def test_the_masks_of_prime_rl_are_the_same_here(tmp_path: Path) -> None:
    masks = "geo_mask_low = 0.1\ngeo_mask_high = 10.0\nsequence_mask_low = 0.0\nsequence_mask_high = 100.0\n"
    tokens = "token_mask_low = 0.125\ntoken_mask_high = 8.0\n"
    given = refused(tmp_path, f"[trainer.loss]\n{masks}{tokens}")
    found = pasted(tmp_path, given, f"[trainer.loss]\n{masks}").trainer.loss
    assert (found.importance_mode, found.importance_floor, found.importance_cap) == ("mask", 0.125, 8.0)
    bounds = (found.geo_mask_low, found.geo_mask_high, found.sequence_mask_low, found.sequence_mask_high)
    assert bounds == (0.1, 10.0, 0.0, 100.0)
    older = "sequence_mask_ratio_high = 50.0\nmask_ratio_low = 0.0\n"
    found = pasted(tmp_path, refused(tmp_path, f"[trainer.loss]\n{older}")).trainer.loss
    assert (found.sequence_mask_high, found.importance_mode, found.importance_floor) == (50.0, "mask", None)
