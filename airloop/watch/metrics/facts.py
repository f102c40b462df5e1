"""What a step's line of metrics holds for the alarms, beside rewards and the learner's report."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airloop.learn.advantages import TurnWeights
from airloop.learn.losses.sequence_mask import sequence_mask
from airloop.success import NAME, name_of
from airloop.watch.metrics.ages import sampled_by
from airloop.watch.metrics.ledger import Ledger, Terms, account

if TYPE_CHECKING:
    from airloop.assemble import Components
    from airloop.engine.base import Engine
    from airloop.learn.advantages import Batch
    from airloop.learn.report import Report
    from airloop.rollout.collected import Collected

MIB = 2**20
PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
ERROR_CHARACTERS = 2000  # of the first error: its sentence and the frames it came through


def step_ledger(parts: Components, collected: Collected, batch: Batch, report: Report) -> Ledger:
    loss = parts.config.trainer.loss
    floor, cap = loss.importance_floor or 0.0, loss.importance_cap
    mask = (floor, cap) if loss.importance_mode == "mask" else None
    weights = {n: TurnWeights(env.reward_weights, env.turn_reward_mode) for n, env in parts.envs.items()}
    terms = Terms(loss.kl_beta > 0 or loss.entropy_beta > 0, mask, sequence_mask(loss.model_dump()))
    return account(collected, batch, report.logprobs, terms, weights)


def step_facts(parts: Components, collected: Collected, report: Report) -> dict[str, Any]:
    """After the update is published."""
    config = parts.config
    decode = parts.loaded.tokenizer.decode
    worst = {name: {**asdict(found), "text": decode([found.token])} for name, found in report.worst.items()}
    first = next((t.error for t in collected.spoilt), "")
    return {
        NAME: name_of(parts.envs.values()),
        "versions": versions(collected) | {"policy": parts.policy.version, "served": parts.engine.version},
        "worst": worst,
        "first_error": first[:ERROR_CHARACTERS],
        **commonest_crash(collected),
        "memory": memory(str(parts.policy.device)),
        **_servers(parts.engine),
        "plan": {
            "max_steps": config.max_steps,
            "lr": config.trainer.optim.lr,
            "lora": config.trainer.model.train == "lora",
            "dtype": str(parts.policy.dtype).removeprefix("torch."),
            "rewards": {title: dict(env.reward_weights) for title, env in parts.envs.items()},
            "success": {title: env.success for title, env in parts.envs.items()},
        },
    }


def _servers(engine: Engine) -> dict[str, dict[str, int]]:
    """Of an engine that is made of servers: one that has died, or whose node is lost, is missed here."""
    answering, servers = engine.answering()
    return {"servers": {"answering": answering, "all": servers}} if servers else {}


def commonest_crash(collected: Collected) -> dict[str, str]:
    """What the agents' own programs said most often when they failed; nothing where none did."""
    episodes = [t for group in collected.groups for t in group.trajectories]
    said = Counter(t.error[:ERROR_CHARACTERS] for t in episodes if t.metrics.get("crashed"))
    return {"commonest_crash": said.most_common(1)[0][0]} if said else {}


def versions(collected: Collected) -> dict[str, int]:
    """Which policy the step was to be sampled from, and which the engine says it was."""
    groups = [*collected.groups, *(d.group for d in collected.dropped)]
    sampled = [v for g in groups for t in g.trajectories for v in sampled_by(t)]
    if not sampled:
        return {}
    return {"wanted": groups[0].version, "sampled_from": min(sampled), "sampled_to": max(sampled)}


def memory(device: str) -> dict[str, float]:
    """MiB in use between two steps, and what there is besides: of the process and, on CUDA, of its GPU."""
    found: dict[str, float] = {}
    if PROC.is_dir():  # elsewhere: not measured
        measured = {"used": process_mib(), "peak": process_mib("VmHWM"), "available": available_mib()}
        found = {name: mib for name, mib in measured.items() if mib is not None}
    if device.startswith("cuda"):
        import torch

        free, _ = torch.cuda.mem_get_info(device)
        reserved, used = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
        peak = torch.cuda.max_memory_allocated(device)
        found |= {"gpu_used": used / MIB, "gpu_peak": peak / MIB, "gpu_available": (free + reserved - used) / MIB}
    return found


def process_mib(what: str = "VmRSS") -> float | None:
    """None where the kernel does not say: sandboxes such as gVisor know no peak."""
    fields = dict(line.split(":", 1) for line in (PROC / "self/status").read_text().splitlines() if ":" in line)
    return float(fields[what].split()[0]) / 1024 if what in fields else None


def available_mib() -> float:
    """Of the machine or of what it lets us have, whichever is less."""
    fields = dict(line.split(":", 1) for line in (PROC / "meminfo").read_text().splitlines())
    machine = float(fields["MemAvailable"].split()[0]) / 1024
    try:
        limit, used = (CGROUP / "memory.max").read_text().strip(), (CGROUP / "memory.current").read_text()
        cache = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())["inactive_file"]
    except (OSError, KeyError):
        return machine
    return machine if limit == "max" else min(machine, (int(limit) - int(used) + int(cache)) / MIB)
