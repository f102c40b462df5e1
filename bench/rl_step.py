"""A whole RL step on one GPU: sampling over several turns with tools, advantages, training, publishing.

The workload is that of the trainings we continue: a Qwen2.5-7B shape with random weights, LoRA r8/α32, 8 trajectories,
2 per task, prompts of 1,300 tokens, 2,000 new tokens over 5 turns, tool answers that take 20 ms. Random weights write
random tokens, so turns have fixed lengths and the engine is driven with token ids; everything else is what `air train`
runs: EmbeddedEngine, assign_advantages, Learner, and the plan that sizes them.

    python bench/rl_step.py                          # the seeds' workload; bar: 18 s a step on one H200
    python bench/rl_step.py --against trl            # TRL's GRPOTrainer on the same model and lengths (single turn)
    python bench/rl_step.py --engine http://127.0.0.1:8000   # sampling by a running vLLM that serves this shape
    python bench/rl_step.py --shape tiny             # on the CPU, in seconds
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import platform
import random
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from rl_work import Work
from shapes import SHAPES, make_model

from airloop.assemble import learner_settings, make_policy
from airloop.config import Config
from airloop.engine.base import Sampling
from airloop.engine.embedded import EmbeddedEngine
from airloop.learn.advantages import Batch, assign_advantages
from airloop.learn.learner import Learner
from airloop.models.loaded import Loaded
from airloop.plan import MemoryPlan, Shape, plan, read_shape
from airloop.policy import Policy
from airloop.types import Branch, Group, Task, Trajectory

GIB = 1 << 30
# What an H200 can do at best, as in docs/performance.md.
BYTES_PER_S, PREFILL_FLOPS, TRAIN_FLOPS = 4.3e12, 700e12, 790e12
TOLERANCE = 0.03  # of the wall clock that the split may miss
PLANNED_WITHOUT_CUDA = 16 * GIB


@dataclass
class Clock:
    """Seconds of one episode; what is left of its wall clock is Python's."""

    queue: float = 0.0
    model: float = 0.0
    tool: float = 0.0
    waited: float = 0.0  # for the episodes that ended later
    ended: float = 0.0


@dataclass
class Parts:
    config: Config
    shape: Shape
    plan: MemoryPlan
    policy: Policy
    engine: EmbeddedEngine
    learner: Learner


@dataclass
class Step:
    wall: float
    sampling: float
    peak: int
    split: dict[str, float] = field(default_factory=dict)

    @property
    def missed(self) -> float:
        return abs(self.wall - sum(self.split.values())) / self.wall


def make_config(name: str, work: Work, rank: int, token_budget: int, context: int) -> Config:
    return Config.model_validate(
        {
            "seq_len": context,
            "model": {"name": name},
            "trainer": {
                "token_budget": token_budget,
                "model": {"ac": {"freq": 1}, "lora": {"rank": rank, "alpha": 32}},
            },
            "orchestrator": {
                "batch_size": work.episodes,
                "rollouts_per_example": work.group,
                "sampling": {"max_tokens": work.new},
            },
            "inference": {"max_batch": work.episodes},
        }
    )


def set_up(config: Config, name: str, device: str) -> Parts:
    """The parts of a run, as airloop/assemble.py puts them together, on random weights."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model, _ = make_model(name, device, dtype)
    nothing: Any = None  # a tokenizer: no text is involved
    policy = make_policy(config, Loaded(model, nothing, name, None, dtype, torch.device(device)))
    shape = read_shape(policy.model)
    made = plan(config, shape, gpu_bytes(device))
    engine = EmbeddedEngine(
        policy,
        context=config.seq_len,
        max_batch=config.inference.max_batch,
        kv_tokens=made.kv_tokens,
        page_size=config.inference.page_size,
        lend=not made.keep_kv,
    )
    return Parts(config, shape, made, policy, engine, Learner(policy, learner_settings(config)))


def gpu_bytes(device: str) -> int:
    return torch.cuda.get_device_properties(0).total_memory if device == "cuda" else PLANNED_WITHOUT_CUDA


# --- ours -------------------------------------------------------------------------------------------------------


async def play(engine: EmbeddedEngine, work: Work, episode: int, step: int, clock: Clock) -> Trajectory:
    began = time.perf_counter()
    tokens = work.start(episode, step)
    train, logprobs, turns = [False] * len(tokens), [0.0] * len(tokens), [-1] * len(tokens)
    for turn in range(work.turns):
        if turn:
            asked = time.perf_counter()
            await asyncio.sleep(work.tool_s)
            clock.tool += time.perf_counter() - asked
            seen = work.answer(episode, step, turn)
            tokens, train = tokens + seen, train + [False] * len(seen)
            logprobs, turns = logprobs + [0.0] * len(seen), turns + [-1] * len(seen)
        reply = await engine.generate(tokens, Sampling(work.new, seed=step * 1000 + episode * 10 + turn))
        clock.queue, clock.model = clock.queue + reply.queue_s, clock.model + reply.model_s
        tokens = tokens + list(reply.token_ids)
        train, turns = train + [True] * len(reply.token_ids), turns + [turn] * len(reply.token_ids)
        logprobs = logprobs + list(reply.logprobs)
    clock.ended = time.perf_counter()
    task = Task("bench", str(episode // work.group), "train")
    branch = Branch(tuple(tokens), tuple(train), tuple(logprobs), tuple(turns))
    reward = random.Random(f"{step} {episode}").random()
    seconds = clock.ended - began
    return Trajectory(
        f"{episode}", task, 0, engine.version, (), (branch,), "done", {}, (), {}, reward, time.time(), seconds
    )


async def run_step(parts: Parts, work: Work, step: int) -> Step:
    """Every second of the wall clock is measured as part of something; nothing is "the rest"."""
    engine, learner = parts.engine, parts.learner
    clocks = [Clock() for _ in range(work.episodes)]
    began, before = time.perf_counter(), phases(engine)
    played = await asyncio.gather(*[play(engine, work, i, step, clock) for i, clock in enumerate(clocks)])
    sampled, after = time.perf_counter(), phases(engine)
    batch = advantages(played, work, parts.config.seq_len)
    async with engine.paused():
        trained = time.perf_counter()
        learner.update(batch)
        synchronize(parts.policy.device)
        updated = time.perf_counter()
    await engine.publish(learner.policy.version)
    done = time.perf_counter()
    for clock in clocks:
        clock.waited = sampled - clock.ended
    mean = {name: sum(getattr(c, name) for c in clocks) / len(clocks) for name in ("queue", "model", "tool", "waited")}
    prefill, decode = after[0] - before[0], after[1] - before[1]
    split = {
        "prefill": mean["model"] * prefill / (prefill + decode),
        "decode": mean["model"] * decode / (prefill + decode),
        "tool wait": mean["tool"],
        "queue": mean["queue"],
        "training": updated - trained,
        "other": mean["waited"] + (trained - sampled) + (done - updated),
    }
    return Step(done - began, sampled - began, peak_memory(parts.policy.device), split)


def phases(engine: EmbeddedEngine) -> tuple[float, float]:
    """Seconds the engine has spent on steps with prompts in them, and on steps that only decode."""
    return engine.counters.phases


def advantages(played: list[Trajectory], work: Work, context: int) -> Batch:
    groups = [
        Group(played[i].task, played[i].version, tuple(played[i : i + work.group]))
        for i in range(0, len(played), work.group)
    ]
    return assign_advantages(groups, loss="grpo", scale_rewards=True, token_constant=context)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def reset_peak(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def check_one_copy(parts: Parts, peak: int) -> None:
    """No second copy of the weights. Now: no tensor outside the model has the shape of one of its matrices (what the
    optimiser and the adapters have is smaller). At any moment before: the peak has no room for it above the plan."""
    own = {p.untyped_storage().data_ptr() for p in parts.policy.model.parameters()}
    shapes = {p.shape for p in parts.policy.model.parameters() if p.dim() == 2 and not p.requires_grad}
    found = [t for t in gc.get_objects() if type(t) in (torch.Tensor, torch.nn.Parameter)]
    copies = [t for t in found if t.shape in shapes and t.untyped_storage().data_ptr() not in own]
    size = sum(t.numel() * t.element_size() for t in copies)
    weights = parts.plan.sampling.weights
    assert size < weights / 2, f"{size / GIB:.2f} GiB of tensors are shaped like the model's weights"
    allowed = parts.plan.peak + weights / 2
    assert peak < allowed, f"the peak of {peak / GIB:.1f} GiB has room for a second copy: planned {allowed / GIB:.1f}"


def limit_s(parts: Parts, work: Work) -> float:
    """Seconds of a step at the hardware's limit: weights and keys read once a token, products at full speed, LoRA's
    backward without weight gradients (forward, recomputation and backward are alike); tools take their time."""
    weights, shape = parts.plan.sampling.weights, parts.shape
    item = parts.policy.dtype.itemsize
    keys = work.episodes * (work.length + work.prompt) / 2 * shape.kv_values * item
    decode = work.turns * work.new * (weights + keys) / BYTES_PER_S
    prompts = work.tasks * work.prompt + work.episodes * (work.turns - 1) * work.observation
    prefill = 2 * shape.parameters * prompts / PREFILL_FLOPS
    shared = work.episodes * work.length - (work.episodes - work.tasks) * work.prompt
    return decode + prefill + 6 * shape.parameters * shared / TRAIN_FLOPS + (work.turns - 1) * work.tool_s


async def ours(options: argparse.Namespace, work: Work, device: str) -> tuple[Parts, list[Step]]:
    config = make_config(options.shape, work, options.rank, options.token_budget, max(options.context, work.length + 1))
    parts = set_up(config, options.shape, device)
    steps: list[Step] = []
    for number in range(options.steps + 1):
        reset_peak(device)
        steps.append(await run_step(parts, work, number))
        check_one_copy(parts, steps[-1].peak)
    await parts.engine.close()
    return parts, steps[1:]  # the first compiles and captures


def print_steps(parts: Parts, work: Work, steps: list[Step]) -> None:
    best = min(steps, key=lambda s: s.wall)
    limit, new = limit_s(parts, work), work.episodes * work.turns * work.new
    print("\n| step | wall s | " + " | ".join(best.split) + " | adds up to | peak GiB |")
    print("|---|" + "---|" * (len(best.split) + 3))
    for number, step in enumerate(steps, 1):
        values = " | ".join(f"{value:.2f}" for value in step.split.values())
        print(f"| {number} | {step.wall:.2f} | {values} | {1 - step.missed:.1%} | {step.peak / GIB:.1f} |")
        assert step.missed <= TOLERANCE, f"the split misses {step.missed:.1%} of the wall clock"
    print(f"\nbest {best.wall:.2f} s a step, {new / best.sampling:.0f} new tokens/s while sampling")
    if best.peak:  # on a GPU
        print(f"limit of an H200 {limit:.2f} s: {limit / best.wall:.0%} of it reached")
    print(f"planned peak {parts.plan.peak / GIB:.1f} GiB ({parts.plan.moment}), no second copy of the weights")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="qwen2.5-7b")
    parser.add_argument("--against", choices=["trl"], help="on the same workload, in this process, afterwards")
    parser.add_argument("--engine", metavar="URL", help="a running vLLM that serves the same shape")
    parser.add_argument("--steps", type=int, default=2, help="measured steps, after one that warms up")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--token-budget", type=int, default=16384)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--group", type=int, default=2)
    for name, usual in (("prompt", "1300"), ("turns", "5"), ("new", "400 a turn"), ("observation", "100")):
        parser.add_argument(f"--{name}", type=int, help=f"default {usual}; less for the tiny shape")
    parser.add_argument("--tool-ms", type=float, default=20)
    return parser.parse_args()


def make_work(options: argparse.Namespace) -> Work:
    prompt, turns, new, observation = (60, 3, 12, 8) if options.shape == "tiny" else (1300, 5, 400, 100)
    if options.against == "trl":  # its transformers path has no tools: all new tokens in one turn
        turns, new = 1, turns * new
    given = {"prompt": prompt, "turns": turns, "new": new, "observation": observation}
    given |= {name: getattr(options, name) for name in given if getattr(options, name) is not None}
    vocabulary = SHAPES[options.shape][7]
    return Work(options.tasks, options.group, **given, tool_s=options.tool_ms / 1000, vocabulary=vocabulary)


def compare_vllm(options: argparse.Namespace, work: Work, best: Step) -> None:
    from rl_step_others import vllm_seconds

    theirs = asyncio.run(vllm_seconds(options.engine, work, options.steps))
    tokens = work.episodes * work.turns * work.new
    print(f"\nsampling: ours {best.sampling:.2f} s, vLLM {theirs:.2f} s ({tokens / theirs:.0f} new tokens/s)")
    print(f"ratio {theirs / best.sampling:.2f} (above 1: ours is faster)")


def compare_trl(options: argparse.Namespace, work: Work, best: Step, device: str) -> None:
    from rl_step_others import trl_step

    reset_peak(device)
    seconds, peak = trl_step(options, work, device)
    print("\n| single turn | s a step | peak GiB |\n|---|---|---|")
    print(f"| air | {best.wall:.2f} | {best.peak / GIB:.1f} |")
    print(f"| TRL GRPOTrainer, transformers | {seconds:.2f} | {peak / GIB:.1f} |")
    memory = f", of peak memory {peak / best.peak:.2f}" if best.peak else ""
    print(f"ratio of step times {seconds / best.wall:.2f}{memory} (above 1: ours is better)")


def main() -> None:
    options = read_options()
    work = make_work(options)
    if options.against == "trl" and work.turns > 1:
        raise SystemExit("--against trl compares a single turn: its transformers path has no tools. Leave --turns out")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    machine = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    print(f"{machine}, torch {torch.__version__}, {options.shape}, LoRA r{options.rank}, {time.strftime('%Y-%m-%d')}")
    print(
        f"{work.episodes} trajectories, {work.group} per task: prompts of {work.prompt}, {work.turns} turns of "
        f"{work.new} new tokens, tool answers of {work.observation} tokens after {work.tool_s * 1000:g} ms"
    )
    parts, steps = asyncio.run(ours(options, work, device))
    print_steps(parts, work, steps)
    del parts
    best = min(steps, key=lambda s: s.wall)
    if options.engine:
        compare_vllm(options, work, best)
    if options.against == "trl":
        compare_trl(options, work, best, device)


if __name__ == "__main__":
    main()
