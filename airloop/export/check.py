"""What was written is loaded again from disk, with none of our classes, and must be the trained policy (G3).

It must give the policy's log-probs on tokens of the run's own episodes, and cut their text into the same tokens.
Everything is computed in fp32, so that what differs is the weights and not the arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from airloop.assemble import learner_settings, load_model, make_policy
from airloop.config import Config
from airloop.errors import AirError
from airloop.eval.trained import Checkpoint, with_weights
from airloop.events import Say
from airloop.export.weights import plain_model
from airloop.runs.run import Run, read_trajectories

if TYPE_CHECKING:
    from airloop.learn.batches import Row
    from airloop.models.loaded import Loaded

CHECKED_ROWS = 8  # episodes, of different tasks
CHECKED_TOKENS = 64  # sampled tokens of each; a wrong weight shows in the first
NOISE = 1e-6  # log-probs that differ by less are the same: fp32 sums in another order
# Of what training changed, so much may be missing or too much in weights of few bits: half is neither policy.
CARRIED = 0.5
FINER = "--dtype float32 of a merged model, --quantize q8_0 or f16 of a GGUF"


@dataclass(frozen=True)
class Tolerance:
    mean: float
    max: float
    why: str
    coarse: bool = False  # rounding may exceed what training changed, as long as that is still in it


# About ten times what SmolLM2-135M showed: 4e-6 and 2e-5 in fp32, 7e-3 and 4e-2 merged into bfloat16.
TOLERANCES = {
    "adapter": Tolerance(5e-5, 5e-4, "the same fp32 weights, only summed in another order"),
    "float32": Tolerance(5e-5, 5e-4, "merging in fp32 rounds each weight in its 24th bit"),
    "float16": Tolerance(1e-2, 1e-1, "float16 keeps 11 bits of each merged weight"),
    "bfloat16": Tolerance(5e-2, 5e-1, "bfloat16 keeps 8 bits of each merged weight"),
    # Of GGUF files SmolLM2-135M showed 2e-5 and 7e-5 in f32, 3e-4 and 4e-3 in f16, 6e-3 and 8e-2 in bf16, 0.014 and 0.2
    # in q8_0; in few bits 0.11 and 2.3 (q5_0) to 0.26 and 3.5 (q4_0): there, what is off by more than a nat is refused.
    "f32": Tolerance(2e-4, 1e-3, "merging in fp32 rounds each weight in its 24th bit"),
    "f16": Tolerance(1e-2, 1e-1, "f16 keeps 11 bits of each merged weight"),
    "bf16": Tolerance(5e-2, 5e-1, "bf16 keeps 8 bits of each merged weight"),
    "q8_0": Tolerance(1e-1, 2.0, "q8_0 keeps 8 bits of each weight, and a scale for every 32"),
    "q5_1": Tolerance(1.0, 10.0, "q5_1 keeps 5 bits of each weight, a scale and an offset for every 32", coarse=True),
    "q5_0": Tolerance(1.0, 10.0, "q5_0 keeps 5 bits of each weight, and a scale for every 32", coarse=True),
    "q4_1": Tolerance(1.0, 10.0, "q4_1 keeps 4 bits of each weight, a scale and an offset for every 32", coarse=True),
    "q4_0": Tolerance(1.0, 10.0, "q4_0 keeps 4 bits of each weight, and a scale for every 32", coarse=True),
}
Logprobs = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Reference:
    """What the export must reproduce, by row: the trained policy's log-probs; and what it must not be."""

    trained: Logprobs
    base: Logprobs


@dataclass(frozen=True)
class Check:
    """Differences of log-probs. `training` is what training changed: mean |trained − base|; `carried` is the share of
    that change which is in the export."""

    tokens: int
    mean: float
    max: float
    training: float
    carried: float
    tolerance: Tolerance


def check_rows(run: Run) -> list[Row]:
    """Token sequences of the run's latest episodes, cut after their first sampled tokens."""
    from airloop.learn.advantages import trajectory_rows

    directories = sorted((run.path / "trajectories").glob("step_*"), reverse=True)
    rows: dict[str, Row] = {}
    for directory in [*directories, *sorted((run.path / "evaluations").glob("*"))]:
        for trajectory in read_trajectories(directory):
            for row in trajectory_rows(trajectory, [0.0], 0.0)[:1]:
                if any(row.train) and trajectory.task.id not in rows:
                    rows[trajectory.task.id] = _cut(row)
            if len(rows) == CHECKED_ROWS:
                return list(rows.values())
    if not rows:
        raise AirError(
            f"{run.path} has no saved episode that its policy sampled, so an export could not be checked.",
            "export from the machine that holds the run's trajectories/ or evaluations/.",
        )
    return list(rows.values())


def _cut(row: Row) -> Row:
    places = [i for i, trained in enumerate(row.train) if trained][:CHECKED_TOKENS]
    end = places[-1] + 1
    return replace(row, tokens=row.tokens[:end], train=row.train[:end], logprobs=row.logprobs[:end])


def trained_logprobs(config: Config, checkpoint: Checkpoint, rows: Sequence[Row], say: Say) -> tuple[Loaded, Reference]:
    """Through the learner's own forward. The model is let go afterwards: one copy at a time in memory."""
    from airloop.learn.checkpoints import load_weights
    from airloop.learn.learner import Learner

    config = with_weights(config, checkpoint)
    config = config.model_copy(update={"model": config.model.model_copy(update={"dtype": "float32"})})
    loaded = load_model(config, say)
    policy = make_policy(config, loaded)
    learner = Learner(policy, replace(learner_settings(config), temperature=1.0))
    if policy.peft is not None:
        trained = learner.logprobs(rows)
        with policy.peft.disable_adapter():
            base = learner.logprobs(rows)
    else:
        base = learner.logprobs(rows)
        load_weights(checkpoint.path, learner)
        trained = learner.logprobs(rows)
    loaded.model = None
    return loaded, Reference(trained, base)


def reloaded_logprobs(directory: Path, base: Path | None, rows: Sequence[Row]) -> dict[str, list[float]]:
    """`base` is the model under an adapter; None: the directory holds a whole model."""
    import torch

    model = plain_model(base or directory)
    if base is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, str(directory)).eval()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = model.to(device)
    found: dict[str, list[float]] = {}
    with torch.inference_mode():
        for row in rows:
            tokens = torch.tensor(row.tokens, device=device)
            places = torch.tensor([i for i, trained in enumerate(row.train) if trained], device=device)
            logits = model(input_ids=tokens[None], use_cache=False).logits[0, places - 1].float()
            found[row.key] = logits.log_softmax(-1).gather(1, tokens[places, None])[:, 0].tolist()
    return found


def measure(found: Logprobs, reference: Reference, tolerance: Tolerance) -> Check:
    """How far it is from the trained policy, and how far that is from the base."""
    from_trained = [abs(x - y) for x, y in _flat(found, reference.trained)]
    changed = [abs(x - y) for x, y in _flat(reference.trained, reference.base)]
    count = len(from_trained)
    training = sum(changed) / count
    carried = _carried(found, reference) if training > NOISE else 1.0
    return Check(count, sum(from_trained) / count, max(from_trained), training, carried, tolerance)


def judge(found: Logprobs, reference: Reference, tolerance: Tolerance) -> Check:
    """Refuses what is not the trained policy."""
    check = measure(found, reference, tolerance)
    count, mean, training, carried = check.tokens, check.mean, check.training, check.carried
    from_base = [abs(x - y) for x, y in _flat(found, reference.base)]
    problem = ""
    if tolerance.coarse and not abs(carried - 1) <= CARRIED:
        problem = f"{carried:.0%} of what training changed is in it: rounding swallowed it, or it was not merged"
    elif training > NOISE and sum(from_base) / count < mean / 2:
        problem = "it is the base model: the adapter is missing or was not merged"
    elif training > NOISE and mean >= training and not tolerance.coarse:
        problem = "it is further from the trained policy than the base model is: rounding swallowed the training"
    elif not (mean <= tolerance.mean and check.max <= tolerance.max):  # put so that NaN is refused, too
        problem = f"allowed are {tolerance.mean:g} on average and {tolerance.max:g} ({tolerance.why})"
    if problem:
        raise AirError(
            f"The export, loaded again, is not the trained policy: log-probs of {count} tokens differ by "
            f"{mean:.2g} on average and {check.max:.2g} at most, where training changed them by "
            f"{training:.2g}; {problem}.",
            f"nothing was left behind; export the adapter (without --merged or --gguf), or what is finer: {FINER}.",
        )
    return check


def _carried(found: Logprobs, reference: Reference) -> float:
    """Along the change that training made: rounding goes any way, and adds little to it or takes little from it."""
    sides = [zip(x, reference.trained[key], reference.base[key], strict=True) for key, x in found.items()]
    moved = [(x - base, trained - base) for side in sides for x, trained, base in side]
    return sum(x * t for x, t in moved) / sum(t * t for _, t in moved)


def _flat(a: Logprobs, b: Logprobs) -> list[tuple[float, float]]:
    return [pair for key in a for pair in zip(a[key], b[key], strict=True)]


def check_tokenizer(directory: Path, loaded: Loaded, rows: Sequence[Row]) -> None:
    """What others will load must cut text, and render a chat, as the run did."""
    from transformers import AutoTokenizer

    from airloop.models.silence_transformers import silenced

    own = loaded.tokenizer
    with silenced():
        other = AutoTokenizer.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
    chat = [{"role": "user", "content": "What is 12 + 345?"}, {"role": "assistant", "content": "357"}]
    texts = [own.decode(row.tokens) for row in rows]
    same = all(list(other.encode(t, add_special_tokens=False)) == own.encode(t) for t in texts)
    one, two = (t.apply_chat_template(chat, tokenize=False) for t in (other, own.hf))
    if not same or one != two:
        what = "cuts the run's episodes into other tokens" if not same else "renders another chat"
        raise AirError(
            f"The exported tokenizer, loaded with AutoTokenizer, {what} than the run's.",
            "nothing was left behind; export the adapter and use the base model's own tokenizer.",
        )
