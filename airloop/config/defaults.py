"""What a key that is not given follows from: another one that is. Plain functions of what a file says."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from airloop.learn.losses import LOSSES

# Steps of a run that has a budget of time and no max_steps of its own: more than any such run will have.
MOST_STEPS = 1000


def fill_loss(data: dict[str, Any]) -> dict[str, Any]:
    """Fill in what the chosen loss has and what a key that was given brings along."""
    chosen = data.get("type", "grpo")
    spec = LOSSES.get(chosen) if isinstance(chosen, str) else None
    filled = spec.defaults if spec is not None else {}
    if data.get("advantage") is not None:  # it says for itself whether it divides
        filled["scale_rewards"] = False
    if data.get("scale_rewards", filled.get("scale_rewards", True)) is True:
        filled["scale_by"] = "group"
    if isinstance(beta := data.get("kl_beta"), int | float) and beta > 0:
        filled["kl_estimator"] = "k3"
    if data.get("overlong") in ("reply", "episode"):
        filled |= {"overlong_share": 0.2, "overlong_penalty": 1.0}
    return filled | {key: value for key, value in data.items() if value is not None or key not in filled}


def spread_seq_len(data: dict[str, Any]) -> dict[str, Any]:
    """Fill in a seq_len that is not given: from the top level, and the trainer's from the sampler's."""
    data = dict(data)
    orchestrator, trainer = _given(data.get("orchestrator")), _given(data.get("trainer"))
    model = _given(trainer.get("model")) if trainer is not None else None
    if orchestrator is None or trainer is None or model is None:
        return data  # a section of the wrong type: the schema refuses it
    if data.get("seq_len") is not None:
        orchestrator.setdefault("seq_len", data["seq_len"])
        model.setdefault("seq_len", data["seq_len"])
    if "seq_len" in orchestrator:
        model.setdefault("seq_len", orchestrator["seq_len"])
    for name, section, parent in (
        ("model", model, trainer),
        ("trainer", trainer, data),
        ("orchestrator", orchestrator, data),
    ):
        if section:
            parent[name] = section
    return data


def fill_budget(data: dict[str, Any]) -> dict[str, Any]:
    """A run that is given minutes and no number of steps has as many as fit."""
    if isinstance(budget := data.get("budget"), dict) and budget.get("minutes") is not None:
        return {"max_steps": MOST_STEPS, **data}
    return data


def _given(section: Any) -> dict[str, Any] | None:
    """The keys that were given in a section, as a dict of our own; None if it is no section at all."""
    if isinstance(section, BaseModel):
        return section.model_dump(exclude_unset=True)
    return dict(section or {}) if section is None or isinstance(section, dict) else None
