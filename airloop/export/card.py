"""The model card beside an export: what it is, what it was trained on, what came of it, how it is loaded.

It is made to be published: no path of this machine, no key and no name of its user is in it (public.py).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from airloop.config import changes_toml
from airloop.export.base import hub_id, short_name
from airloop.export.public import public_config
from airloop.files import write_text
from airloop.runs.results import run_results
from airloop.runs.run import Run
from airloop.text.figures import duration
from airloop.text.keys import without_keys
from airloop.watch.alarms.reward_sources import successes_of, weights_of
from airloop.watch.display.summary import base_gain, gains, paired

LIBRARIES = {"adapter": "peft", "model": "transformers", "gguf": "gguf"}
RELATIONS = {"adapter": "adapter", "model": "finetune", "gguf": "finetune"}
WHAT = {"adapter": "This is the LoRA adapter", "model": "This is the whole model", "gguf": "This is the whole model"}
PICTURE = "learning.png"
UNKNOWN = "unknown: see the base model"


def write_card(directory: Path, run: Run, report: Mapping[str, Any], licence: str | None) -> None:
    """README.md, and the run's curve if it has one."""
    if (run.path / PICTURE).is_file():
        shutil.copyfile(run.path / PICTURE, directory / PICTURE)
    parts = [
        _front_matter(run, report, licence),
        "\n".join(_opening(run, report, licence)),
        "\n".join(["## Result on held-out tasks", "", *_result(run, report)]),
        *([f"![success and reward by step]({PICTURE})"] if (directory / PICTURE).is_file() else []),
        "\n".join(["## Training", "", *_training(run, report)]),
        f"What differs from the defaults:\n\n```toml\n{changes_toml(public_config(run.config))}```",
        "\n".join(["## Check of this export", "", *_checked(report)]),
        "\n".join(["## Use", "", *_use(report)]),
    ]
    write_text(directory / "README.md", without_keys("\n\n".join(parts)) + "\n")


def _front_matter(run: Run, report: Mapping[str, Any], licence: str | None) -> str:
    from huggingface_hub import ModelCardData

    base = hub_id(run.config.model.name)
    facts = ModelCardData(
        base_model=base,
        base_model_relation=RELATIONS[report["form"]] if base else None,
        library_name=LIBRARIES[report["form"]],
        license=licence or "unknown",
        pipeline_tag="text-generation",
        tags=["air", "reinforcement-learning", run.config.trainer.loss.type, *_environments(run)],
    )
    return f"---\n{facts.to_yaml()}\n---"


def _environments(run: Run) -> list[str]:
    return list(dict.fromkeys(entry.title for entry in run.config.orchestrator.env))


def _opening(run: Run, report: Mapping[str, Any], licence: str | None) -> Iterator[str]:
    base = short_name(run.config.model.name)
    yield f"# {base}, trained on {', '.join(_environments(run))}"
    yield ""
    yield (
        f"{report['model']} after {report['step']} steps of reinforcement learning with air {report['air_version']} "
        f"(run {report['run']}). {WHAT[report['form']]}, in {report['dtype']}."
    )
    yield ""
    yield f"Licence of the base model: {licence or UNKNOWN}."


def _result(run: Run, report: Mapping[str, Any]) -> Iterator[str]:
    """Success first. An interval that holds zero is no evidence, and is called so. Of an evaluation that was stopped in
    the middle nothing is told: what ends first is not like the rest."""
    before, after = paired(run.evaluation("before"), run.evaluation("after"))
    if not before or not {"before", "after"} <= {line["name"] for line in run.metrics("eval")}:
        yield "This run was not evaluated to the end on held-out tasks before and after."
        return
    found = gains(run, before, after)
    yield (
        f"{found[0].gain.n} tasks, {len(before)} episodes, the same tasks and seeds before and after; "
        "means over tasks with 95 % intervals, differences paired:"
    )
    yield ""
    yield "| | before | after | difference | |"
    yield "|---|---|---|---|---|"
    for row in found:
        yield f"| {row.name} | {row.before} | {row.after} | {row.gain.signed} | {row.gain.word} |"
    if base := base_gain(run, before):
        yield ""
        yield f"`before` is behind a supervised start; the model itself has {base.name} {base.before}."
    if report["step"] != run.config.max_steps:
        yield ""
        yield f"The result is of the policy after step {run.config.max_steps}; this export is of step {report['step']}."


def _training(run: Run, report: Mapping[str, Any]) -> Iterator[str]:
    steps = [line for line in run.metrics("train") if line["step"] < report["step"]]
    families = sorted({name for line in steps for name in line.get("task", {})})
    weights, successes = weights_of(steps), successes_of(steps)
    for title in _environments(run):
        yield f"- environment `{title}`" + (f", success is `{s}`" if (s := successes.get(title)) else "")
        if paid := weights.get(title):
            yield "  - rewards and their weights: " + ", ".join(f"`{name}` {w:g}" for name, w in paid.items())
    if families:
        yield f"- tasks: {', '.join(families[:20])}" + (f" and {len(families) - 20} more" if families[20:] else "")
    episodes = sum(line.get("rollout", {}).get("episodes", 0) for line in steps)
    trained = run.config.trainer.model.train
    what = f"LoRA of rank {run.config.trainer.model.lora.rank}" if trained == "lora" else "all the weights"
    yield f"- {len(steps)} steps, {episodes} episodes, the loss `{run.config.trainer.loss.type}`, {what}"
    yield f"- {_when(run)}"


def _when(run: Run) -> str:
    results = run_results(run.path)
    noted = run.status().get("machine") or {}
    machine = noted.get("gpu") or noted.get("processor") or "a machine that was not noted"
    day = time.strftime("%Y-%m-%d", time.gmtime(results["started"])) if results["started"] else "a day not noted"
    return f"{duration(results['seconds'])} on {machine}, {day}"


def _checked(report: Mapping[str, Any]) -> Iterator[str]:
    check = report["check"]
    limit = check["tolerance"]
    yield (
        f"Loaded again from its files and compared on {check['tokens']} tokens of the run's own episodes, its "
        f"log-probs differ from the trained policy's by {check['mean']:.2g} on average and {check['max']:.2g} at most. "
        f"Allowed are {limit['mean']:g} and {limit['max']:g} ({limit['why']}); training changed them by "
        f"{check['training']:.2g} on average. Exported on {report['date'][:10]}."
    )


def _use(report: Mapping[str, Any]) -> Iterator[str]:
    """In the folder of this file."""
    if report["form"] == "gguf":
        yield f"    llama-cli -m {report['file']}"
        yield "    ollama create my-model -f Modelfile && ollama run my-model"
        return
    yield "```python"
    yield "from transformers import AutoModelForCausalLM, AutoTokenizer"
    if report["form"] == "adapter":
        base = report["base"] if hub_id(report["base"]) else short_name(report["base"])
        yield "from peft import PeftModel"
        yield ""
        yield f'base = "{base}"' + ("" if hub_id(report["base"]) else "  # the directory of the base model")
        yield 'model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), ".")'
        yield "tokenizer = AutoTokenizer.from_pretrained(base)"
    else:
        yield ""
        yield 'model = AutoModelForCausalLM.from_pretrained(".")'
        yield 'tokenizer = AutoTokenizer.from_pretrained(".")'
    yield "```"
