"""Loading, precedence, flags, line numbers, the resolved TOML and the help; family A is in faults/."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from airloop.config import ALIASES, Config, EnvConfig, Refused, describe_keys, format_keys, load_config, to_toml
from airloop.errors import AirError

H100_V5 = """\
inference_gpu_ids = [0]
trainer_gpu_ids = [0]
max_steps = 1000

[model]
name = "Qwen/Qwen2.5-7B-Instruct"

[trainer.model]
seq_len = 2048

[trainer.model.ac]
freq = 1                  # CRITICAL: Full activation checkpointing saves ~20GB

[trainer.model.lora]
rank = 8
alpha = 32

[orchestrator]
batch_size = 8            # Minimal for single GPU
rollouts_per_example = 2  # Minimal for single GPU
seq_len = 2048

[orchestrator.sampling]
max_tokens = 2000         # CRITICAL: Must fit within max_model_len - input_tokens

[inference]
gpu_memory_utilization = 0.50

[inference.model]
enable_auto_tool_choice = true
tool_call_parser = "hermes"
enforce_eager = true
max_model_len = 4096
"""
ENV = """
[[orchestrator.env]]
id = "seconds-0/beautiful-soup-env"
args = { split = "train", timeout_s = 30.0 }
"""


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def refusal(*argv: str) -> str:
    with pytest.raises(AirError) as caught:
        load_config(argv)
    return str(caught.value)


def test_the_single_gpu_toml_of_the_seeds_loads_unchanged(tmp_path: Path):
    config = load_config(["@", write(tmp_path, "v5.toml", H100_V5 + ENV)])
    assert config.seq_len == 2048 and config.gpu == 0
    assert config.trainer.model.ac is not None and config.trainer.model.ac.freq == 1
    assert config.orchestrator.env == [EnvConfig(id="soup", args={"split": "train", "timeout_s": 30.0})]
    assert 'id = "soup"' in to_toml(config)


@pytest.mark.parametrize(("sampling", "training"), [([0], [1]), ([0], [2, 3, 4, 5, 6]), ([4, 5], [0, 1, 2])])
def test_gpus_apart_have_servers_of_vllm_without_being_told(tmp_path: Path, sampling: list[int], training: list[int]):
    text = f"inference_gpu_ids = {sampling}\ntrainer_gpu_ids = {training}\nmax_steps = 10\n"
    text += "[orchestrator]\nbatch_size = 8\nrollouts_per_example = 4\n[[orchestrator.env]]\nid = 'air_mlgym'\n"
    text += 'args = { env_gpu = "7", task_configs = ["titanic.yaml"], max_turns = 10, num_examples_per_task = 10 }\n'
    config = load_config(["@", write(tmp_path, "apart.toml", text)])
    assert (config.inference.backend, config.inference_gpu_ids) == ("vllm", sampling)
    assert (config.gpus, config.ranks) == (training, len(training))
    again = load_config(["@", write(tmp_path, "resolved.toml", to_toml(config))])
    assert again == config


def test_nothing_given_is_the_default():
    assert load_config([]) == Config()
    assert Config().orchestrator.env[0].id == "tune"
    assert Config().wandb is None and Config().warnings() == []


@pytest.mark.parametrize(
    ("foreign", "ours"),
    [("air_mlgym", "mlgym"), ("vf-musique", "musique"), ("seconds-0/beautiful-soup-env", "soup")],
)
def test_environment_ids_of_other_tools(foreign: str, ours: str):
    assert load_config(["--orchestrator.env.0.id", foreign]).orchestrator.env[0].id == ours


def test_files_left_to_right_then_flags(tmp_path: Path):
    a = write(tmp_path, "a.toml", "max_steps = 1\nseed = 1\n[trainer.optim]\nlr = 1e-4\nmax_norm = 0.5\n")
    b = write(tmp_path, "b.toml", "seed = 2\n[trainer.optim]\nlr = 2e-4\n")
    config = load_config(["--trainer.optim.lr", "2e-5", "@", a, f"@{b}"])
    assert (config.max_steps, config.seed) == (1, 2)
    assert (config.trainer.optim.lr, config.trainer.optim.max_norm) == (2e-5, 0.5)
    assert load_config(["@", b, "@", a]).seed == 1


def test_a_later_list_of_environments_replaces_the_earlier(tmp_path: Path):
    a = write(tmp_path, "a.toml", '[[orchestrator.env]]\nid = "x"\n[[orchestrator.env]]\nid = "y"\n')
    b = write(tmp_path, "b.toml", '[[orchestrator.env]]\nid = "z"\n')
    assert [env.id for env in load_config(["@", a, "@", b], environments=False).orchestrator.env] == ["z"]


@pytest.mark.parametrize(
    ("flags", "key", "value"),
    [
        (["--trainer.optim.lr", "2e-5"], "trainer.optim.lr", 2e-5),
        (["--model.name=foo"], "model.name", "foo"),
        (["--model.name", "123"], "model.name", "123"),
        (["--max-steps=1e3"], "max_steps", 1000),
        (["--deterministic"], "deterministic", True),
        (["--deterministic", "false"], "deterministic", False),
        (["--no-deterministic"], "deterministic", False),
        (["--trainer.loss.no-scale-rewards"], "trainer.loss.scale_rewards", False),
        (["--no-trainer.loss.scale-rewards"], "trainer.loss.scale_rewards", False),
        (
            ["--trainer.model.lora.target-modules", '["q_proj"]'],
            "trainer.model.lora.target_modules",
            ["q_proj"],
        ),
        (
            ["--trainer.model.lora.target_modules", "['k', 'v']"],
            "trainer.model.lora.target_modules",
            ["k", "v"],
        ),
        (["--trainer.optim.betas", "[0.8, 0.9]"], "trainer.optim.betas", (0.8, 0.9)),
        (["--warmstart.min_reward", "-0.5"], "warmstart.min_reward", -0.5),
        (["--trainer.model.ac.freq", "2"], "trainer.model.ac.freq", 2),
        (["--trainer_gpu_ids", "[0]"], "trainer_gpu_ids", [0]),
        (["--model.adapter", "none"], "model.adapter", None),
    ],
)
def test_flags(flags: list[str], key: str, value: object):
    node: Any = load_config(flags)
    for part in key.split("."):
        node = getattr(node, part)
    assert node == value and type(node) is type(value)


def test_flags_into_environments(tmp_path: Path):
    file = write(tmp_path, "a.toml", '[[orchestrator.env]]\nid = "mlgym"\nargs = { max_turns = 9, mode = "m" }\n')
    flags = [
        "--orchestrator.env.0.args.max_turns",
        "5",
        "--orchestrator.env.0.rewards.score=2",
        "--orchestrator.env.1.id=x",
    ]
    first, second = load_config(["@", file, *flags], environments=False).orchestrator.env
    assert first.args == {"max_turns": 5, "mode": "m"} and first.rewards == {"score": 2.0}
    assert second.id == "x"
    args = "--orchestrator.env.0.args"
    flags = [f"{args}.datasets", "p,c,train[:256]", f"{args}.verbose", f"{args}.lr=1e-5"]
    env = load_config(flags, environments=False).orchestrator.env[0]
    assert env == EnvConfig(id="tune", args={"datasets": "p,c,train[:256]", "verbose": True, "lr": 1e-5})
    flag = ["--orchestrator.env", '[{"id": "arith", "args": {"a": [1, 2]}}]']
    whole = load_config(flag, environments=False).orchestrator.env
    assert whole == [EnvConfig(id="arith", args={"a": [1, 2]})]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["run.toml"], ["neither a config that comes with air nor a file", "write @ FILE.toml"]),
        (["arith", "run.toml"], ["neither a file (@) nor a flag", "write @ run.toml"]),
        (["@"], ["needs a file"]),
        (["@", "no/such.toml"], ["no/such.toml", "looked for"]),
        (["--max_steps"], ["--max_steps needs a value"]),
        (["--max_steps", "many"], ["--max_steps many", "a valid integer", "--max_steps 20"]),
        (["--deterministic", "yes"], ["--deterministic yes", "--deterministic true"]),
        (["--trainer.modell.impl", "hf"], ["--trainer.modell.impl hf", "--trainer.model.impl hf"]),
        (["--max_steps", "1", "--max_steps.x", "1"], ["--max_steps.x 1", "not a section"]),
        (["--orchestrator.env.4.id", "x"], ["1 elements"]),
        (["--orchestrator.env.1.args.x", "1"], ["orchestrator.env.1.id is missing"]),
        (
            ["--orchestrator.env.0.args.x", "[null]"],
            ["--orchestrator.env.0.args.x '[null]'", "no null in TOML"],
        ),
        (["--no-deterministic", "true"], ["takes no value"]),
        (["--trainer.model.lora.target_modules", "q_proj"], ["valid list", "'[\"q_proj\"]'"]),
        (["--trainer.optim.lr", "nan"], ["finite"]),
        (["--trainer.optim.lr", "-1"], ["greater than 0"]),
        (["--orchestrator.sampling.temperature", "0"], ["greater than 0"]),
        (["--orchestrator.oversampling_factor", "0.5"], ["greater than or equal to 1"]),
        (["--trainer.model.lora.dropout", "0.1"], ["must be 0 in RL", "leave it out"]),
        (["--trainer.loss.type=rloo", "--trainer.loss.clip_low=0.1"], ["clip_low = 0.1", "rloo", "leave it out"]),
        (["--trainer.loss.type=rloo", "--trainer.loss.clip_high=0.1"], ["clip_high = 0.1", "rloo", "leave it out"]),
        (["--trainer.loss.type=cispo", "--trainer.loss.clip_low=0.1"], ["clip_low = 0.1", "cispo", "leave it out"]),
        (["--trainer.loss.type=rloo", "--trainer.loss.passes=2"], ["neither ratio nor clip", "passes 1"]),
        (["--trainer.loss.kl_estimator", "k2"], ['kl_estimator = "k2"', "no effect with kl_beta = 0", "leave it out"]),
        (["--trainer.loss.scale_by=batch", "--no-trainer.loss.scale_rewards"], ["scale_rewards = false"]),
        (["--trainer.loss.scale_by=batch", "--trainer.loss.type=dr_grpo"], ["scale_rewards = false"]),
        (["--trainer.loss.importance_floor", "0.5"], ['importance_mode = "truncate"', "leave it out"]),
        (["--trainer.loss.overlong_share", "0.5"], ['no effect with overlong = "off"', "leave it out"]),
        (["--trainer.loss.overlong_penalty", "0.5"], ['no effect with overlong = "off"', "leave it out"]),
        (["--trainer.loss.type", "gpso"], ["--trainer.loss.type gspo"]),
        (["--model.device", "mps"], ["not in this version", "--model.device cpu"]),
        (["--deterministic", "--model.dtype", "bfloat16"], ["fp32", "--model.dtype float32"]),
        (["--trainer_gpu_ids", "[-1]"], ["0 or more"]),
        (["--trainer_gpu_ids", "[]"], ["at least 1 item"]),
    ],
)
def test_refusals_of_flags(argv: list[str], words: list[str]):
    answer = refusal(*argv)
    for word in words:
        assert word in answer


@pytest.mark.parametrize(
    ("text", "problem", "corrected"),
    [
        (
            "inference_gpu_ids = [0]\ntrainer_gpu_ids = [0, 1]",
            "different GPUs",
            "inference_gpu_ids = [0, 1]\n    trainer_gpu_ids = [0, 1]",
        ),
        (
            "inference_gpu_ids = [0, 1, 2]\ntrainer_gpu_ids = [3]\ninference.backend = 'embedded'",
            "different GPUs",
            "inference_gpu_ids = [0, 1, 2, 3]\n    trainer_gpu_ids = [0, 1, 2, 3]",
        ),
        ("trainer_gpu_ids = [2, 3, 2]", "names a GPU twice", "trainer_gpu_ids = [2, 3]"),
        ("inference_gpu_ids = [3, 3]", "names a GPU twice", "inference_gpu_ids = [3]"),
        ("trainer.model.shard = true", "here one process has all of it", "shard = false"),
        (
            'trainer.model = { train = "full", shard = false }\ntrainer_gpu_ids = [0, 1]',
            "where all weights are in shards",
            "shard = true",
        ),
        ("trainer_gpu_ids = [2, 3]\ntrainer.processes = 3", "one process for each of the 2 GPUs", "processes = 2"),
    ],
)
def test_gpus(tmp_path: Path, text: str, problem: str, corrected: str):
    answer = refusal("@", write(tmp_path, "a.toml", text))
    assert problem in answer and corrected in answer and "a.toml:1" in answer and "mistakes" not in answer


@pytest.mark.parametrize(
    ("text", "corrected"),
    [
        ("trainer_gpu_ids = [2, 3]", "trainer_gpu_ids = [2]"),
        ("inference_gpu_ids = [2, 3]\ntrainer_gpu_ids = [2, 3]", "trainer_gpu_ids = [2]\n    inference_gpu_ids = [2]"),
        ("trainer.processes = 2", "processes = 1"),
        ("cluster.nodes = 2\ncluster.gpus_per_node = 2", "nodes = 1"),
        (
            'cluster = { nodes = 3, roles = { learner = 2, sampler = 1 } }\ninference.backend = "vllm"\n'
            'inference.vllm.adapters = "http"',
            "[cluster.roles]\n    learner = 1\n    [cluster]\n    nodes = 2",
        ),
    ],
)
def test_remote_agents_have_one_process_to_ask(tmp_path: Path, text: str, corrected: str):
    write(tmp_path, "tasks.jsonl", '{"a": 1}\n')
    env = '[[orchestrator.env]]\nid = "program"\nargs = { remote = true, tasks = "tasks.jsonl" }\n'
    answer = refusal("@", write(tmp_path, "a.toml", f"{text}\n{env}"))
    assert "ask one process for episodes" in answer and corrected in answer, answer
    load_config(["@", write(tmp_path, "b.toml", env)], environments=False)


def test_several_gpus_have_a_process_each():
    for flags, gpus, ranks in [
        (["--trainer_gpu_ids=[2,3]"], [2, 3], 2),
        (["--inference_gpu_ids=[2,3]"], [2, 3], 2),
        (["--inference_gpu_ids=[3,2]", "--trainer_gpu_ids=[2,3]"], [2, 3], 2),
        (["--trainer_gpu_ids=[2,3]", "--trainer.processes=2"], [2, 3], 2),
        (["--trainer_gpu_ids=[2,3]", "--model.device=cpu"], [2, 3], 1),
        (["--trainer.processes=3"], [], 3),
        ([], [], 1),
    ]:
        config = load_config(flags)
        assert (config.gpus, config.ranks) == (gpus, ranks)
    assert "not evenly shared by 3" in load_config(["--trainer.processes=3"]).warnings()[0]


def test_what_a_correction_leads_to_is_corrected_in_the_same_round():
    """Without vLLM the GPUs cannot be apart: said with it, not after it."""
    answer = refusal("--inference_gpu_ids=[0,1]", "--trainer_gpu_ids=[0]", "--inference.backend=vllm")
    assert "share a GPU" in answer and "--trainer_gpu_ids '[0, 1]'" in answer
    assert load_config(["--inference_gpu_ids=[0,1]", "--trainer_gpu_ids=[0,1]", "--inference.backend=embedded"])


def test_all_mistakes_in_one_go(tmp_path: Path):
    text = 'max_steps = "200"\n[trainer.model]\nrank = 16\n[orchestrator]\nbatch_size = 30\n'
    text += "[trainer.optim]\nlrr = 1\n"
    answer = refusal("@", write(tmp_path, "a.toml", text), "--lora-r", "8", "--model.device", "tpu")
    assert answer.splitlines()[0] == "6 mistakes in the configuration:"
    for line in (1, 3, 5, 7):
        assert f"a.toml:{line}: " in answer
    assert "max_steps = 200" in answer and "--lora-r 8" in answer and "--model.device tpu" in answer
    assert answer.count("fix:") == 6


def test_wrong_types_in_files(tmp_path: Path):
    text = 'seed = 1.0\nmax_steps = true\noutput_dir = 3\n[trainer.optim]\nlr = "1e-5"\n'
    text += "[trainer.loss]\nscale_rewards = 1\n"
    answer = refusal("@", write(tmp_path, "a.toml", text))
    assert answer.startswith("5 mistakes")
    for corrected in (
        "seed = 1\n",
        "max_steps = 20",
        'output_dir = "3"',
        "lr = 1e-5",
        "scale_rewards = true",
    ):
        assert corrected in answer


def test_the_line_is_that_of_the_file_that_won(tmp_path: Path):
    a = write(tmp_path, "a.toml", "[orchestrator]\nbatch_size = 32\n")
    b = write(tmp_path, "b.toml", "# more\n\n[orchestrator]\nbatch_size = 12\n")
    assert "b.toml:4: batch_size = 12" in refusal("@", a, "@", b)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\nb = yes\n", 2),
        ("a = 1\n[x\n", 2),
        ("a = 1\na = 2\n", 2),
        ('a = 1\n\nb = "x\n', 3),
        ("a = [1,\n", 1),
    ],
)
def test_bad_toml_names_the_line(tmp_path: Path, text: str, line: int):
    assert f"a.toml:{line}: this is not valid TOML" in refusal("@", write(tmp_path, "a.toml", text))


def test_files_that_are_not_text_or_not_there(tmp_path: Path):
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"\n')
    assert "not UTF-8" in refusal("@", str(tmp_path / "latin.toml"))
    assert "is a folder" in refusal("@", str(tmp_path))
    assert f"did you mean @ {tmp_path / 'latin.toml'}" in refusal("@", str(tmp_path / "latn.toml"))


def test_keys_with_one_value_are_taken_with_it_and_say_nothing(tmp_path: Path):
    """As files and the configs of earlier runs have them."""
    text = "[trainer.model.lora]\ndropout = 0.0\n[inference.model]\nenable_auto_tool_choice = true\n"
    assert load_config(["@", write(tmp_path, "a.toml", text)]) == load_config([])
    assert load_config(["--trainer.model.lora.dropout", "0", "--inference.model.enable_auto_tool_choice"]) == Config()
    answer = refusal("@", write(tmp_path, "b.toml", text.replace("0.0", "0.1").replace("true", "false")))
    assert "b.toml:2: dropout = 0.1" in answer and "b.toml:4: enable_auto_tool_choice = false" in answer
    assert answer.count("delete the line") == 2


def test_two_strategies_that_train_the_same_tokens_say_so():
    (warning,) = load_config(["--orchestrator.trajectory_strategy", "branching"]).warnings()
    assert "the same tokens" in warning and load_config([]).warnings() == []


def test_configs_made_in_python_are_checked_too():
    with pytest.raises(ValidationError, match="cannot be split into groups"):
        Config.model_validate({"orchestrator": {"batch_size": 30}})
    with pytest.raises(ValidationError):
        Config().max_steps = 3  # type: ignore[misc]


def test_a_loss_brings_its_papers_values_along():
    loss = load_config([]).trainer.loss
    assert (loss.clip_low, loss.clip_high, loss.scale_rewards, loss.scale_by) == (0.2, 0.2, True, "group")
    assert (loss.kl_estimator, loss.overlong_share, loss.importance_floor) == (None, None, None)
    loss = load_config(["--trainer.loss.type=dapo", "--trainer.loss.kl_beta=0.1"]).trainer.loss
    assert (loss.clip_low, loss.clip_high, loss.kl_estimator) == (0.2, 0.28, "k3")
    loss = load_config(["--trainer.loss.type=gspo", "--trainer.loss.clip_high=1e-3"]).trainer.loss
    assert (loss.clip_low, loss.clip_high) == (3e-4, 1e-3)
    loss = load_config(["--trainer.loss.type=cispo", "--trainer.loss.overlong=reply"]).trainer.loss
    assert (loss.clip_low, loss.clip_high, loss.overlong_share, loss.overlong_penalty) == (None, 4.0, 0.2, 1.0)
    loss = load_config(["--trainer.loss.type=rloo", "--trainer.loss.clip_low=none"]).trainer.loss
    assert (loss.clip_low, loss.clip_high, loss.scale_rewards, loss.scale_by) == (None, None, False, None)
    loss = load_config(["--trainer.loss.type=dr_grpo", "--trainer.loss.scale_rewards"]).trainer.loss
    assert (loss.scale_rewards, loss.scale_by) == (True, "group")


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo"])
def test_the_resolved_toml_of_every_loss_loads_to_the_same(tmp_path: Path, kind: str):
    flags = [f"--trainer.loss.type={kind}", "--trainer.loss.overlong=episode", "--trainer.loss.importance_mode=mask"]
    config = load_config([*flags, "--trainer.loss.kl_beta=0.1", "--trainer.loss.credit=turn"])
    assert load_config(["@", write(tmp_path, "resolved.toml", to_toml(config))]) == config


def test_losses_that_act_from_the_second_pass_on_warn():
    loss = "--trainer.loss"
    (warning,) = load_config([f"{loss}.clip_high=0.3"]).warnings()
    assert "clip_high = 0.3" in warning and "nothing is ever clipped" in warning
    (warning,) = load_config([f"{loss}.type=gspo"]).warnings()
    assert 'the gradient of "grpo"' in warning
    assert load_config([f"{loss}.type=gspo", f"{loss}.clip_high=0.3", f"{loss}.passes=2"]).warnings() == []
    (warning,) = load_config([f"{loss}.credit=turn", "--orchestrator.buffer.online_difficulty_filtering"]).warnings()
    assert "whose turns differ" in warning


def test_truncated_sampling_and_unused_gpus_warn():
    sampling = "--orchestrator.sampling"
    (warning,) = load_config([f"{sampling}.top_p=0.9", f"{sampling}.top_k=5", f"{sampling}.min_p=0.1"]).warnings()
    assert "top_p = 0.9, top_k = 5, min_p = 0.1" in warning and "untruncated" in warning
    assert "not used" in load_config(["--trainer_gpu_ids=[0]", "--model.device=cpu"]).warnings()[0]


@pytest.mark.parametrize(
    ("argv", "answer"),
    [
        ("--lora-r 16", "--trainer.model.lora.rank 16"),
        ("--lora-alpha 32", "--trainer.model.lora.alpha 32.0"),
        ("--loss-type dr_grpo", "--trainer.loss.type dr_grpo"),
        ("--kl-beta 0", "--trainer.loss.kl_beta 0.0"),
        ("--num-generations 8", "--orchestrator.rollouts_per_example 8"),
        ("--scale-rewards", "--trainer.loss.scale_rewards true"),
        ("--no-peft", "--trainer.model.train full"),
        ("--max-grad-norm 0.01", "--trainer.optim.max_norm 0.01"),
        ("--batch-size 16", "--orchestrator.batch_size 16"),
        ("--batch-size 16 --gradient-accumulation-steps 8", "--orchestrator.batch_size 128"),
        ("--batch-size 16 --gradient-accumulation-steps 8 --num-processes 3", "16 × 8 × 3 = 384"),
        ("--gradient-accumulation-steps 8", "trainer.token_budget"),
        ("--max-completion-length 1024", "--orchestrator.sampling.max_tokens 1024"),
        ("--num-processes 3", "--trainer.processes 3"),
        ("--data-parallel-size 2", "leave it out"),
        ("--config-file zero3.yaml", "leave it out"),
        ("--datasets a,b,train[:256]", 'id = "musique"\n    args = { datasets = "a,b,train[:256]" }'),
        ("--bf16", "--model.dtype bfloat16"),
        ("--learning_rate=1e-5", "--trainer.optim.lr 1e-5"),
        ("--model Qwen/Qwen3-4B", "--model.name Qwen/Qwen3-4B"),
    ],
)
def test_flags_of_the_musique_command_lines(argv: str, answer: str):
    assert answer in refusal(*argv.split())


def test_aliases_name_real_keys():
    known = {key.name for key in describe_keys()} | {"orchestrator.env.0.args.datasets"}
    assert {alias.key for alias in ALIASES.values() if alias.key} <= known


def test_every_key_has_a_type_and_a_sentence():
    keys = describe_keys()
    assert len({key.name for key in keys}) == len(keys) > 60
    for key in keys:
        assert key.type and key.help.endswith(".") and key.help[0].isupper(), key.name
    by_name = {key.name: key for key in keys}
    assert by_name["trainer.optim.lr"].default == "0.0001" and by_name["trainer.optim.lr"].type == "float"
    assert by_name["orchestrator.env.0.id"].default == "required"
    text = format_keys()
    assert "[[orchestrator.env]]" in text and "[trainer.model.lora]" in text and "id " in text


def test_importing_the_config_imports_nothing_heavy():
    code = "import sys, airloop.config; print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("words", "problem", "fix"),
    [
        (["--minutes", "abc"], "--minutes abc: expected a valid number", "write --minutes 12, for instance"),
        (["--minutes", "-1"], "--minutes -1: expected greater than 0", "write --minutes 12, for instance"),
        (["--minutes=0"], "--minutes 0: expected greater than 0", "write --minutes 12, for instance"),
        (["--minutes"], "--minutes needs a value", "write --minutes 12"),
        (["--budget.minutes", "0"], "--budget.minutes 0: expected", "write --minutes 12, for instance"),
        (["--budget", "3"], "--budget 3: expected a table", "write --minutes 3"),
        (["--budget", "abc"], "--budget abc: expected a table", "write --minutes 12"),
    ],
)
def test_a_budget_that_is_none_is_said_as_it_was_typed_with_an_example(
    words: list[str], problem: str, fix: str
) -> None:
    with pytest.raises(Refused) as refused:
        load_config(words)
    assert refused.value.problem.startswith(problem) and fix in refused.value.fix
    assert "leave it out" not in str(refused.value)


def test_a_budget_that_is_none_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[budget]\nminutes = 0\n")
    with pytest.raises(Refused) as refused:
        load_config(["@", str(tmp_path / "a.toml")])
    assert "write minutes = 12, for instance" in refused.value.fix


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("train arith --minuts 3", "write --minutes 3"),
        ("train --config f.toml", "write @ f.toml"),
        ("train -c f.toml", "write @ f.toml"),
        ("train --env arith", "write --orchestrator.env.0.id arith"),
        ("train --hlep", "write --help"),
        ("train arith --resmue outputs/exp1.0", "write --resume outputs/exp1.0"),
        ("plan arith --josn", "write --json"),
        ("eval arith --splitt test", "write --split test"),
        ("eval arith -n 3", "write --n"),
        ("train arith max_steps=3", "write --max_steps 3"),
        ("train max_steps=3", "write --max_steps 3"),
        ("train ARITH", "did you mean arith?"),
        ("train arith gsm8k/cpu", "lay the copy over it: arith @ gsm8k/cpu.toml"),
    ],
)
def test_what_is_typed_first_is_answered_with_what_to_type(air: Any, words: str, fix: str) -> None:
    code, _, problem = air(*words.split())
    assert code == 1 and fix in problem, problem
    assert "the top level has" not in problem
