"""docs/coming_from.md, made of the tables of other trainers' keys.

python -m airloop.config.coming_from > docs/coming_from.md
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airloop.config.env_aliases import env_synonyms
from airloop.config.foreign import ALIASES, FOREIGN_KEYS, FOREIGN_VALUES, Alias, Answer
from airloop.config.foreign_paths import foreign_at
from airloop.config.foreign_prime import PRIME
from airloop.config.foreign_verl import VERL
from airloop.config.lengths import ENGINE, SAMPLED, TRAINED
from airloop.config.sources import leaves
from airloop.config.toml import toml_value

DELETE, CHOICE = "delete it", "your choice"
# Where the answer depends on the value: those that are shown, by the key, or by the function that answers.
SAMPLES: dict[str, tuple[Any, ...]] = {
    "_peft": (True, False),
    "_both_clips": (0.2,),
    "_level": ("token", "sequence"),
    "_schedule": ("constant", "cosine", "polynomial"),
    "_group": (8, 1),
    "_ratios": ([1, 2],),
    "_offload": (True,),
    "_buffer_type": ("online-difficulty", "simple"),
    "_pools": (0.5,),
    "_filters": ([{"type": "zero_advantage"}], [{"type": "repetition"}]),
    "_kl_kind": ("low_var_kl", "abs"),
    "_estimator": ("grpo", "gae"),
    "_gpu_count": (2,),
    "_async_level": (1, 0),
    "_dropout": (0.0, 0.1),
    "_tool_choice": (True, False),
    "_context": (4096,),
    "_per_prompt": (16,),
    "adam_beta1": (0.9,),
    "adam_beta2": (0.99,),
    "trainer.optim.betas1": (0.9,),
    "trainer.optim.betas2": (0.99,),
    "deployment": ({"num_train_gpus": 1, "num_infer_gpus": 1}, {"type": "multi_node"}),
    "trainer.model.experimental": ({"lora": {"rank": 16}},),
    "trainer.optim.type": ("adamw", "muon"),
    **dict.fromkeys(("trainer.loss.token_mask_low", "trainer.loss.mask_ratio_low"), (0.125, 0.0)),
    **dict.fromkeys(("trainer.loss.token_mask_high", "trainer.loss.mask_ratio_high"), (8.0,)),
    "orchestrator.training_mode": ("rl", "sft"),
    "orchestrator.algo.type": ("grpo", "opd"),
    "orchestrator.advantage.type": ("default", "custom"),
}
WHEN_OFF = "when_off.<locals>.read"
# What else stands in the file, where an answer counts with it.
BESIDE: Mapping[str, Any] = {"actor_rollout_ref": {"rollout": {"n": 8}}, "orchestrator": {"env": [{}, {}]}}


@dataclass(frozen=True)
class KeyRow:
    there: str
    here: str
    note: str


def rows_of(name: str, alias: Alias) -> list[KeyRow]:
    """What is said of one key: once, or for each of some values."""
    if alias.read is None:
        here = ", ".join(_assigned(alias)) or (CHOICE if alias.choice else DELETE)
        return [KeyRow(name, here, _sentence(alias.why, alias.instead))]
    if alias.read.__qualname__ == WHEN_OFF:
        answer = alias.read(True, BESIDE)
        return [KeyRow(name, CHOICE, _sentence(answer.why, answer.instead, "0 or false: delete it"))]
    found = SAMPLES.get(name) or SAMPLES[alias.read.__qualname__]
    return [_sampled(name, value, alias.read(value, BESIDE)) for value in found]


def _assigned(alias: Alias) -> list[str]:
    if not alias.key:
        return []
    return [f"`{alias.key}`" if alias.value is None else f"`{alias.key} = {toml_value(alias.value)}`"]


def _sampled(name: str, value: Any, answer: Answer) -> KeyRow:
    here = ", ".join(f"`{'.'.join(map(str, path))} = {toml_value(v)}`" for path, v in leaves(answer.changes).items())
    if answer.choice:
        here = f"{CHOICE}; {here}" if here else CHOICE
    return KeyRow(f"{name} = {toml_value(value)}", here or DELETE, _sentence(answer.why, answer.instead))


def _sentence(*parts: str) -> str:
    return "; ".join(dict.fromkeys(part for part in parts if part))


def said_of(name: str) -> str:
    """What is known of another trainer's key, for `air train --help`; empty for none."""
    plain = name.strip("-[] ").replace("-", "_")
    if plain in (SAMPLED, ENGINE, TRAINED):
        return f"{plain} is read as seq_len, the one length that an episode has: as it is sampled, held and trained."
    alias = ALIASES.get(plain) or FOREIGN_KEYS.get(plain) or foreign_at(tuple(plain.split(".")))
    if alias is None:
        return ""
    told = [f"{row.there}: {row.here.replace('`', '')}. {_upper(row.note)}".strip() for row in rows_of(plain, alias)]
    return "\n\n".join(["Another trainer's key; here:", *told])


def _upper(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def table(keys: Mapping[str, Alias], there: str) -> list[str]:
    """A row for each answer: keys that are answered alike stand together."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, alias in keys.items():
        for row in rows_of(name, alias):
            found.setdefault((row.here, row.note), []).append(f"`{row.there}`")
    lines = [f"| {there} | here | why, or what to do |", "|---|---|---|"]
    return [*lines, *(_line(", ".join(names), here, note) for (here, note), names in found.items())]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _values() -> Iterable[str]:
    yield from ("| key | value there | here | why, or what to do |", "|---|---|---|---|")
    for key, values in FOREIGN_VALUES.items():
        alike: dict[tuple[str, str], list[str]] = {}
        for value, answer in values.items():
            row = _sampled(key, value, answer)
            alike.setdefault((row.here, row.note), []).append(f"`{toml_value(value)}`")
        yield from (_line(f"`{key}`", ", ".join(given), here, note) for (here, note), given in alike.items())


HEAD = """\
# Coming from another trainer

Made by `python -m airloop.config.coming_from > docs/coming_from.md` from the tables that `air train` itself reads; a
test keeps it current.

Pass the file or the flags that you have: `air train @ theirs.toml`, or a verl command's `a.b=c`. A key of another
trainer is not translated in silence. It is refused with file, line and what to write instead, all of them in one round,
and `air train --help KEY` says the same of one key. In the tables:

- a key of air's: write that, with your value, or with the value that stands there
- *delete it*: nothing of what is trained is lost
- *your choice*: there is no equivalent; without it another run is trained, so you decide

`x.**` is everything below `x`, `*` an element of a list.

What differs from all of them: a batch (`orchestrator.batch_size`) is counted in trajectories per step, over all GPUs
and accumulation steps; the sampler uses the trainer's own weights, so there is no server, there are no GPUs for
inference alone and no weights to send; sampling is strictly on-policy; data and rewards belong to an environment
([environments.md](environments.md)).
"""

TRL = """\
## TRL

`GRPOConfig` and what it inherits, by the names of its arguments; flags are the same with hyphens
(`--num-generations 8`). Some are of scripts around TRL. `train_dataset` and `reward_funcs` are `dataset` and `rewards`
in the args of the environment `prompts`, rows and functions as they are ([environments.md](environments.md#prompts)):

    [[orchestrator.env]]
    id = "prompts"
    args = { dataset = "org/rows", rewards = ["./rewards.py:correct", "./rewards.py:short"] }
    rewards = { correct = 1.0, short = 0.1 }    # reward_weights, by name; 1 each without it

`environment_factory` and `tools` are an environment of one file (`air init DIR`).
"""

PRIME_RL = """\
## prime-rl

Versions 0.3 to 0.8 and later. The sections are the same here, and a key that is not in this table and that
`air train --help` lists means the same in both. What a file of prime-rl leaves to its defaults is asked to be written
down, since air's defaults are others. `orchestrator.seq_len`, `trainer.model.seq_len` and
`inference.model.max_model_len` are read as the one length that an episode has here, `seq_len`: the shorter of what is
sampled and what the engine holds. Where they contradict each other they are refused.
"""

VERL_HEAD = """\
## verl

Keys as they stand on its command line (`data.train_batch_size=256`), here with `actor_rollout_ref.rollout.n = 8`.
"""

ART = """\
## ART

ART is a library: the loop is a program of yours, and there are no keys to translate. What its parts are here:

| ART | here |
|---|---|
| `async def rollout(model, scenario) -> art.Trajectory` | `Session.begin`, `act`, `finish`: air calls the model |
| `trajectory.reward = …` | the `Score` that `finish` returns: components, weighed in `[[orchestrator.env]] rewards` |
| a list of scenarios | `Environment.tasks(split)`; `eval` and `test` are held out |
| `art.TrajectoryGroup(rollout(…) for _ in range(8))` | `orchestrator.rollouts_per_example = 8` |
| groups in a step | `orchestrator.batch_size` divided by `rollouts_per_example` |
| `art.TrainConfig(learning_rate=1e-5, beta=0.01)` | `trainer.optim.lr = 1e-5`, `trainer.loss.kl_beta = 0.01` |
| `art.TrainableModel(base_model=…)` | `model.name` |
| `model.log(groups, split="val")` | `[orchestrator.eval]`: before, after, and every `interval` steps |
| RULER, or another judge of a group | `Environment.group_rewards`, with a judge of your own: none comes with air |
| an agent of your own behind an OpenAI client | `id = "./my_agent.py:solve"`, as it is ([programs.md](programs.md)) |
"""


def page() -> str:
    known = [_line(f"`{theirs}`", f"`{ours}`") for theirs, ours in env_synonyms().items()]
    parts = [
        HEAD,
        TRL,
        *table(ALIASES, "TRL"),
        f"\n{PRIME_RL}",
        *table(PRIME, "prime-rl"),
        "\nEnvironments that have another name here:\n",
        *("| id there | id here |", "|---|---|", *known),
        f"\n{VERL_HEAD}",
        *table(VERL, "verl"),
        f"\n{ART}",
        "## Wherever they stand\n\nKeys that are known in any file, in any section:\n",
        *table(FOREIGN_KEYS, "key"),
        "\n## Values\n\nOf keys that are here, too:\n",
        *_values(),
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    print(page())
