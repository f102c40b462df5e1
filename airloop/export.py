"""A run's weights for other programs: an adapter in PEFT's format, or a whole model for transformers.

What was written is loaded again from disk with plain transformers and PEFT, none of our classes, and must
give the trained policy's log-probs on tokens of the run's own episodes (G3). An export that does not is not
left behind. Everything is computed in fp32, so that what differs is the weights and not the arithmetic.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airloop.assemble import learner_settings, load_model, make_policy
from airloop.config import Config
from airloop.errors import AirError
from airloop.eval.trained import Checkpoint, choose_checkpoint, with_weights
from airloop.events import Say
from airloop.files import read_object, whole_directory, write_json
from airloop.runs.run import Run, read_trajectories
from airloop.version import __version__

if TYPE_CHECKING:
    from airloop.learn.batches import Row
    from airloop.models.loaded import Loaded

CHECKED_ROWS = 8  # episodes, of different tasks
CHECKED_TOKENS = 64  # sampled tokens of each; a wrong weight shows in the first
NOISE = 1e-6  # log-probs that differ by less are the same: fp32 sums in another order


@dataclass(frozen=True)
class Tolerance:
    mean: float
    max: float
    why: str


# About ten times what SmolLM2-135M showed: 4e-6 and 2e-5 in fp32, 7e-3 and 4e-2 merged into bfloat16.
TOLERANCES = {
    "adapter": Tolerance(5e-5, 5e-4, "the same fp32 weights, only summed in another order"),
    "float32": Tolerance(5e-5, 5e-4, "merging in fp32 rounds each weight in its 24th bit"),
    "float16": Tolerance(1e-2, 1e-1, "float16 keeps 11 bits of each merged weight"),
    "bfloat16": Tolerance(5e-2, 5e-1, "bfloat16 keeps 8 bits of each merged weight"),
}
Logprobs = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Reference:
    """What the export must reproduce, by row: the trained policy's log-probs; and what it must not be."""

    trained: Logprobs
    base: Logprobs


@dataclass(frozen=True)
class Check:
    """Differences of log-probs. `training` is what training changed: mean |trained − base|."""

    tokens: int
    mean: float
    max: float
    training: float
    tolerance: Tolerance


def export(
    path: Path, out: Path, *, merged: bool = False, which: str = "last", dtype: str | None = None, say: Say
) -> dict[str, Any]:
    run = Run.open(path)
    checkpoint = choose_checkpoint(run, which)
    whole = merged or checkpoint.adapter is None
    if dtype is not None and (not whole or dtype not in TOLERANCES or dtype == "adapter"):
        problem = "there is no such dtype here" if whole else "an adapter is always saved in float32"
        raise AirError(f"--dtype {dtype}: {problem}.", "with --merged: float32, bfloat16 or float16.")
    out = out.expanduser().resolve()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise AirError(f"{out} is not empty.", "give another --out: nothing is overwritten.")
    rows = check_rows(run)
    say(f"{run.name}, step {checkpoint.step}: log-probs of the trained policy")
    loaded, reference = trained_logprobs(run.config, checkpoint, rows, say)
    with plain_base(loaded) as base, whole_directory(out) as beside:
        if whole:
            dtype = dtype or saved_dtype(base if checkpoint.adapter else checkpoint.path / "model")
            say(f"writing the whole model in {dtype}")
            write_whole(beside, base, checkpoint, dtype, loaded)
        else:
            write_adapter(beside, checkpoint.path / "adapter", base_name(loaded))
        say("loading it again, with plain transformers, and comparing")
        kind = dtype or "adapter"
        found = reloaded_logprobs(beside, None if whole else base, rows)
        check = judge(found, reference, TOLERANCES[kind])
        if whole:
            check_tokenizer(beside, loaded, rows)
        report = {
            "run": str(run.path),
            "step": checkpoint.step,
            "model": run.config.model.name,
            "form": "model" if whole else "adapter",
            "base": None if whole else base_name(loaded),
            "dtype": dtype or "float32",
            "check": asdict(check),
            "air_version": __version__,
            "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        write_json(beside / "export.json", report)
    return {**report, "directory": str(out)}


# --- what it must be ----------------------------------------------------------------------------------------


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


@contextlib.contextmanager
def plain_base(loaded: Loaded) -> Iterator[Path]:
    """The base model's directory; a tiny one is made in memory and has none, so it gets one for a while."""
    if loaded.path is not None:
        yield loaded.path
        return
    from airloop.models.tiny import save_tiny

    with tempfile.TemporaryDirectory(prefix="air-export-") as directory:
        yield save_tiny(directory, loaded.name.removeprefix("tiny:"))


def base_name(loaded: Loaded) -> str:
    """What an adapter says it belongs to: the hub id, if the weights were the hub's, else the directory."""
    from airloop.models.sources import cache_directory

    if loaded.path is None:
        return loaded.name
    path = loaded.path.resolve()
    converted = cache_directory().resolve() in path.parents  # from a 4-bit file: not the hub's weights
    return str(path) if converted or Path(loaded.name).expanduser().exists() else loaded.name


def saved_dtype(directory: Path) -> str:
    config = read_object(directory / "config.json")
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    return dtype if dtype in TOLERANCES else "float32"


# --- writing ------------------------------------------------------------------------------------------------


def write_adapter(directory: Path, adapter: Path, base: str) -> None:
    shutil.copytree(adapter, directory, dirs_exist_ok=True)
    path = directory / "adapter_config.json"
    config = read_object(path)
    path.write_text(json.dumps({**config, "base_model_name_or_path": base}, indent=2, sort_keys=True) + "\n")


def write_whole(directory: Path, base: Path, checkpoint: Checkpoint, dtype: str, loaded: Loaded) -> None:
    """Merged in fp32 and rounded once."""
    import torch

    from airloop.models.quiet import quiet

    model = plain_model(base if checkpoint.adapter else checkpoint.path / "model")
    if checkpoint.adapter:
        model = merge(model, checkpoint.adapter)
    model.config.use_cache = True  # training switched it off
    with quiet():
        model.to(getattr(torch, dtype)).save_pretrained(str(directory))
        loaded.tokenizer.hf.save_pretrained(str(directory))


def merge(model: Any, adapter: Path) -> Any:
    from peft import PeftModel

    from airloop.learn.lora import check_patterns

    check_patterns(adapter)
    return PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()


def plain_model(directory: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    from airloop.models.quiet import quiet

    with quiet():
        model: Any = AutoModelForCausalLM.from_pretrained(
            str(directory),
            dtype=torch.float32,
            attn_implementation="sdpa",
            local_files_only=True,
            trust_remote_code=False,
        )
        return model.eval()


# --- reading it again ---------------------------------------------------------------------------------------


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


def judge(found: Logprobs, reference: Reference, tolerance: Tolerance) -> Check:
    """Refuses what is not the trained policy."""
    exact = _flat(found, reference.trained)
    from_trained = [abs(x - y) for x, y in exact]
    from_base = [abs(x - y) for x, y in _flat(found, reference.base)]
    changed = [abs(x - y) for x, y in _flat(reference.trained, reference.base)]
    count = len(exact)
    mean, training = sum(from_trained) / count, sum(changed) / count
    check = Check(count, mean, max(from_trained), training, tolerance)
    problem = ""
    if training > NOISE and sum(from_base) / count < mean / 2:
        problem = "it is the base model: the adapter is missing or was not merged"
    elif training > NOISE and mean >= training:
        problem = "it is further from the trained policy than the base model is: rounding swallowed the training"
    elif not (mean <= tolerance.mean and check.max <= tolerance.max):  # put so that NaN is refused, too
        problem = f"allowed are {tolerance.mean:g} on average and {tolerance.max:g} ({tolerance.why})"
    if problem:
        raise AirError(
            f"The export, loaded again, is not the trained policy: log-probs of {count} tokens differ by "
            f"{mean:.2g} on average and {check.max:.2g} at most, where training changed them by "
            f"{training:.2g}; {problem}.",
            "nothing was left behind; export the adapter (without --merged), or --merged --dtype float32.",
        )
    return check


def _flat(a: Logprobs, b: Logprobs) -> list[tuple[float, float]]:
    return [pair for key in a for pair in zip(a[key], b[key], strict=True)]


def check_tokenizer(directory: Path, loaded: Loaded, rows: Sequence[Row]) -> None:
    """What others will load must cut text, and render a chat, as the run did."""
    from transformers import AutoTokenizer

    from airloop.models.quiet import quiet

    own = loaded.tokenizer
    with quiet():
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


def format_report(report: dict[str, Any]) -> str:
    check = report["check"]
    limit = check["tolerance"]
    lines = [
        f"{report['form']} of step {report['step']} in {report['dtype']}: {report['directory']}",
        f"loaded again and compared on {check['tokens']} tokens: log-probs differ by {check['mean']:.2g} "
        f"on average, {check['max']:.2g} at most",
        f"  allowed: {limit['mean']:g} and {limit['max']:g} ({limit['why']}); training changed them by "
        f"{check['training']:.2g}",
    ]
    if report["base"]:
        lines.append(f"the adapter belongs on {report['base']}")
    if check["training"] <= NOISE:
        lines.append("note: training changed nothing that can be measured: this is the base model")
    elif check["mean"] > 0.1 * check["training"]:
        share = check["mean"] / check["training"]
        lines.append(f"note: rounding is {share:.0%} of what training changed; --dtype float32 keeps it all")
    return "\n".join(lines)
