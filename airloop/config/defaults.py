"""What a key that is not given follows from: another one that is. Plain functions of what a file says."""

from __future__ import annotations

from typing import Any

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


def fill_backend(data: dict[str, Any]) -> dict[str, Any]:
    """GPUs that sample and do not train have servers: no other engine has weights of its own."""
    trained, sampled, inference = data.get("trainer_gpu_ids"), data.get("inference_gpu_ids"), data.get("inference", {})
    if not isinstance(trained, list) or not isinstance(sampled, list) or not isinstance(inference, dict):
        return data
    apart = trained and sampled and not any(gpu in trained for gpu in sampled)
    return {**data, "inference": {"backend": "vllm", **inference}} if apart else data


def fill_roles(data: dict[str, Any]) -> dict[str, Any]:
    """Machines that only sample have servers, which do not see what others write: they pull the policy."""
    cluster, inference = data.get("cluster"), data.get("inference", {})
    if not isinstance(cluster, dict) or not cluster.get("roles") or not isinstance(inference, dict):
        return data
    filled = {"backend": "vllm", **inference}
    if filled["backend"] == "vllm" and isinstance(told := inference.get("vllm", {}), dict):
        filled["vllm"] = {"adapters": "http", **told}
    return {**data, "inference": filled}


def fill_budget(data: dict[str, Any]) -> dict[str, Any]:
    """A run that is given minutes and no number of steps has as many as fit."""
    if isinstance(budget := data.get("budget"), dict) and budget.get("minutes") is not None:
        return {"max_steps": MOST_STEPS, **data}
    return data
