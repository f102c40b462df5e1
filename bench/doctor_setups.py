"""Healthy set-ups for bench/doctor.py, and the evidence that they are healthy: none of it is the doctor's own.

*Agreement*: log-probs of the engine and of the trainer, with an adapter that is not zero, against those of a model that
transformers makes anew in float32 and whose weights are merged here. For bfloat16 the same set-up in float32 must agree
to 2e-3; the bfloat16 one to 0.1. *Trained*: 20 steps, in the last five of which success is higher than in the
first five, by twice its noise.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from airloop import assemble
from airloop.config import Config, load_config
from airloop.doctor.base import STAGES
from airloop.doctor.case import Case
from airloop.doctor.examine import examine
from airloop.doctor.forecast import forecast
from airloop.engine.base import Sampling
from airloop.errors import AirError
from airloop.learn.batches import Row
from airloop.learn.lora import LoraLinear
from airloop.models.loaded import Loaded
from airloop.speed import measure_speed

NAMES = {
    "tiny-llama": "tiny:llama",
    "tiny-qwen2": "tiny:qwen2",
    "tiny-qwen3": "tiny:qwen3",
    "tiny-mistral": "tiny:mistral",
    "smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct",
}
ENVIRONMENTS: dict[str, dict[str, str]] = {
    "arith": {"seq_len": "256"},
    "gsm8k": {"seq_len": "1024"},
    "gsm8k-calculator": {"seq_len": "3072", "orchestrator.env.0.args.max_turns": "2"},
    "tune": {
        "seq_len": "2048",
        "orchestrator.env.0.args.workers": "1",
        "orchestrator.env.0.args.max_turns": "2",
    },
    "musique": {
        "seq_len": "6144",
        "orchestrator.env.0.args.max_turns": "2",
        "orchestrator.env.0.args.datasets": '"generated,,train"',
        "orchestrator.env.0.args.test_datasets": '"generated,,test"',
    },
    "soup": {"seq_len": "6144", "orchestrator.env.0.args.max_turns": "2"},
    "mlgym": {
        "seq_len": "8192",
        "orchestrator.env.0.args.max_turns": "2",
        "orchestrator.env.0.args.task_configs": '["titanic.yaml"]',
    },
}
# Tiny models write bytes, so their prompts are long; real ones are slow on two cores. The slow environments are seldom.
TINY_ENVIRONMENTS = ("arith", "gsm8k", "tune", "arith", "gsm8k-calculator", "arith", "musique", "soup", "mlgym")
ENVIRONMENTS_OF_REAL = ("arith", "gsm8k", "arith", "tune")
RANKS = (4, 8, 16, 32, 64, 128, 256)
RATIOS = (0.5, 1.0, 2.0, 4.0)
RATES = (1e-6, 1e-5, 1e-4, 1e-3)
# Full fine-tuning at LoRA's rates is no healthy set-up: Adam moves every number by lr.
FULL_RATES = (1e-6, 1e-5, 1e-4)
AGREES = {torch.float32: 2e-3, torch.bfloat16: 0.1}
PROMPT_TOKENS, REPLY_TOKENS, REPLIES = 192, 16, 3
ADAPTER = 0.02  # the standard deviation of the second matrices, over alpha / rank and the root of the rank: a usual one


@dataclass(frozen=True)
class Setup:
    model: str
    train: str
    rank: int
    ratio: float  # alpha / rank
    lr: float
    dtype: str
    env: str
    trained: bool = False  # 20 steps, instead of agreement
    processes: int = 1
    seed: int = 0

    @property
    def id(self) -> str:
        lora = f"r{self.rank}x{self.ratio:g}" if self.train == "lora" else "full"
        kind = f"-trained-{self.processes}" if self.trained else ""
        return f"{Path(self.model).stem}-{lora}-lr{self.lr:g}-{self.dtype}-{self.env}{kind}-s{self.seed}"

    @property
    def real(self) -> bool:
        return not self.model.startswith("tiny")

    def config(self, dtype: str | None = None, **changes: str) -> Config:
        flags = {
            "model.name": NAMES.get(self.model, self.model),
            "model.dtype": dtype or self.dtype,
            "seed": str(self.seed),
            "trainer.model.train": self.train,
            "trainer.optim.lr": repr(self.lr),
            "orchestrator.env.0.id": self.env,
            "orchestrator.batch_size": "16",
            "orchestrator.rollouts_per_example": "8",
            "orchestrator.sampling.max_tokens": "24" if self.real else "8",
            **ENVIRONMENTS[self.env],
        }
        if self.train == "lora":
            flags |= {
                "trainer.model.lora.rank": str(self.rank),
                "trainer.model.lora.alpha": str(self.rank * self.ratio),
            }
        flags |= {key.replace("__", "."): value for key, value in changes.items()}
        return load_config([word for key, value in flags.items() for word in (f"--{key}", value)])

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "model": Path(self.model).stem, "real": self.real}


def setups(models: Sequence[str], on: str, limit: int) -> list[Setup]:
    """The first `limit` of a shuffled grid for each model, in turn: every value of every setting comes up."""
    by_model = [list(_grid(model, on)) for model in models]
    return list(itertools.chain.from_iterable(zip(*by_model, strict=False)))[:limit]


def _grid(model: str, on: str) -> Iterator[Setup]:
    """One in six trains all weights. Few CPUs multiply bfloat16: there it is for tiny models, seldom, in `arith`."""
    tiny = model.startswith("tiny")
    types = ("bfloat16", "float32") if tiny or on == "gpu" else ("float32",)
    chance = random.Random(model)
    lora = [("lora", *x) for x in itertools.product(RANKS, RATIOS, RATES, types)]
    full = [("full", 0, 0.0, *x) for x in itertools.product(FULL_RATES, types)]
    chance.shuffle(lora)
    chance.shuffle(full)
    slow = on == "cpu"
    lora = [x for i, x in enumerate(lora) if not slow or x[-1] == "float32" or i % 3 == 0]
    for number in range(len(lora)):
        train, rank, ratio, lr, dtype = full.pop() if number % 6 == 5 and full else lora[number]
        env = (TINY_ENVIRONMENTS if tiny else ENVIRONMENTS_OF_REAL)[number % (9 if tiny else 4)]
        yield Setup(model, train, rank, ratio, lr, dtype, "arith" if slow and dtype == "bfloat16" else env, seed=number)


def trained_setups(models: Sequence[str], limit: int) -> list[Setup]:
    """The config `arith` and what may be changed in it without harm; every fifth by two processes."""
    tiny = [m for m in models if m.startswith("tiny")]
    grid = itertools.product(range(10), tiny, (("full", 0, 0.0, 2e-3), ("lora", 32, 2.0, 1e-2), ("full", 0, 0.0, 1e-3)))
    return [
        Setup(model, train, rank, ratio, lr, "float32", "arith", True, 2 if number % 5 == 4 else 1, seed)
        for number, (seed, model, (train, rank, ratio, lr)) in enumerate(itertools.islice(grid, limit))
    ]


def verdicts(case: Case, only: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Of every check, or of these, each stage by itself: a failure of one would leave out the next."""
    found: dict[str, dict[str, Any]] = {}
    for stage in STAGES:
        for result in examine(case, (stage,), only):
            said = [f for f in result.findings if f.verdict == result.verdict]
            ids = sorted({i for f in said for i in f.ids or result.check.ids})
            verdict = result.verdict or "not done"
            found[result.check.name] = {
                "verdict": verdict,
                "ids": ids,
                "seen": said[0].seen if said else result.not_done,
            }
    return found


# --- models, loaded once -----------------------------------------------------------------------------------


class Shelf:
    """Loaded models by name and number format, without adapters; and one of transformers' own for each name."""

    def __init__(self, on: str) -> None:
        self._device = "cuda" if on == "gpu" else "cpu"
        self._loaded: dict[tuple[str, str], Loaded] = {}
        self._plain: dict[str, Any] = {}

    @contextlib.contextmanager
    def case(self, config: Config) -> Iterator[Case]:
        """As the doctor makes one, but the weights come from the shelf and go back as they were."""
        config = config.model_copy(update={"model": config.model.model_copy(update={"device": self._device})})
        original, case = assemble.load_model, Case(config)
        assemble.load_model = lambda config, say: self._take(config, original, say)
        try:
            with case:
                yield case
        finally:
            assemble.load_model = original
            if "parts" in case.__dict__:
                _put_back(case.__dict__["parts"])

    def _take(self, config: Config, load: Any, say: Any) -> Loaded:
        key = (config.model.name, config.model.dtype)
        if key not in self._loaded:
            self._loaded[key] = load(config, say)
        return self._loaded[key]

    def plain(self, case: Case) -> Any:
        """transformers' own, in float32, with the policy's weights; adapters merged by the config's numbers."""
        from transformers import AutoModelForCausalLM

        policy, lora = case.parts.policy, case.config.trainer.model.lora
        name = case.config.model.name
        if name not in self._plain:
            config = type(policy.model.config).from_dict(policy.model.config.to_dict())
            made = AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, attn_implementation="eager", trust_remote_code=False
            )
            self._plain[name] = made.to(policy.device).eval().requires_grad_(False)
        model = self._plain[name]
        own = dict(model.named_parameters())
        for path, module in policy.model.named_modules():
            base = module.base_layer if isinstance(module, LoraLinear) else module
            for kind, parameter in base.named_parameters(recurse=False):
                if (target := own.get(f"{path}.{kind}")) is not None:
                    target.data.copy_(parameter.detach())
            if isinstance(module, LoraLinear):
                a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
                own[f"{path}.weight"].data.add_((b.float() @ a.float()) * (lora.alpha / lora.rank))
        return model


def _put_back(parts: Any) -> None:
    model = parts.policy.model
    if parts.policy.peft is not None:
        parts.policy.peft.unload()
    model.requires_grad_(False)
    model.set_attn_implementation("sdpa")
    model.eval()


# --- evidence --------------------------------------------------------------------------------------------------


def agreement(shelf: Shelf, setup: Setup) -> dict[str, float]:
    """Mean distances of engine and trainer from transformers in float32: of the set-up in float32 and, where it is
    another, in its own format."""
    found: dict[str, float] = {}
    for dtype in dict.fromkeys(("float32", setup.dtype)):
        with shelf.case(setup.config(dtype)) as case, _an_adapter(case):
            engine, trainer = _gaps(shelf, case)
        found |= {f"{dtype}_engine": engine, f"{dtype}_trainer": trainer}
    return found


def agrees(found: dict[str, float]) -> bool:
    return all(value <= AGREES[getattr(torch, name.split("_")[0])] for name, value in found.items())


@contextlib.contextmanager
def _an_adapter(case: Case) -> Iterator[None]:
    lora = case.config.trainer.model.lora
    generator = torch.Generator().manual_seed(1)
    size = ADAPTER / (lora.alpha / lora.rank) / lora.rank**0.5
    changed = [p for name, p in case.parts.policy.trainable() if "lora_B" in name]
    for parameter in changed:
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * size)
    case.wait(case.parts.engine.publish(0))
    yield
    for parameter in changed:
        parameter.data.zero_()


@torch.no_grad()
def _gaps(shelf: Shelf, case: Case) -> tuple[float, float]:
    parts, plain = case.parts, shelf.plain(case)
    prompts = [case.tokenizer.encode(p.text)[-PROMPT_TOKENS:] for p in case.prompts[:REPLIES]]
    if not prompts:
        raise AirError("No task was opened in the time that the doctor gives it: this machine is too busy.", "")
    own: list[float] = []
    rows: list[Row] = []
    for number, prompt in enumerate(prompts):
        reply = case.wait(parts.engine.generate(prompt, Sampling(REPLY_TOKENS, 1.0, seed=number), f"{number:03d}"))
        tokens = (*prompt, *reply.token_ids)
        rows.append(Row.of_reply(f"{number}#0", prompt, reply.token_ids, reply.logprobs))
        ids = torch.tensor([tokens], device=parts.policy.device)
        logits = plain(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].double()
        own += logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0].tolist()
    trainer = parts.learner.logprobs(rows)
    engine = [lp for row in rows for lp, t in zip(row.logprobs, row.train, strict=True) if t]
    other = [lp for row in rows for lp in trainer[row.key]]
    return tuple(statistics.fmean(abs(a - b) for a, b in zip(x, own, strict=True)) for x in (engine, other))  # type: ignore[return-value]


def train(setup: Setup) -> dict[str, Any]:
    """Success (the share of right answers) in the first and the last five of 20 steps, and what the run said."""
    from rich.console import Console

    from airloop.doctor.preflight import _for_one
    from airloop.runs.run import Run
    from airloop.training import start
    from airloop.warmstart import with_warmstart
    from airloop.watch.display.display import Display

    flags = {
        "model.name": NAMES[setup.model],
        "trainer.model.train": setup.train,
        "trainer.optim.lr": repr(setup.lr),
        "max_steps": "20",
        "seed": str(setup.seed),
        "trainer.processes": str(setup.processes),
        "model.device": "cpu",
        "orchestrator.eval.num_examples": "8",
    }
    if setup.train == "lora":
        flags |= {"trainer.model.lora.rank": str(setup.rank), "trainer.model.lora.alpha": str(setup.rank * setup.ratio)}
    with tempfile.TemporaryDirectory(prefix="air-bench-") as folder:
        words = [word for key, value in flags.items() for word in (f"--{key}", value)]
        config = load_config(["arith", *words, "--output_dir", folder])
        run = Run.open(start(config, Display(Console(quiet=True), quiet=True), skip_proofs=True).run.path)
        steps = run.metrics("train")
        first, last = ([r for m in part for r in m["rewards"]] for part in (steps[:5], steps[-5:]))
        noise = math.sqrt(sum(statistics.pvariance(part) / len(part) for part in (first, last)))
        step_s = statistics.median(sum(m["times"][k] for k in ("sampling", "training", "sync")) for m in steps)
        file = run.path / "alarms.jsonl"
        alarms = file.read_text().splitlines() if file.exists() else []
        with Case(with_warmstart(_for_one(config))) as case:
            judged = verdicts(case)
            told = forecast(case.config, case.probe, case.wait(measure_speed(case.parts)), setup.processes)
        return {
            "first": statistics.fmean(first),
            "last": statistics.fmean(last),
            "noise": noise,
            "alarms": alarms,
            "step_s": step_s,
            "forecast_s": told.step_s,
            "verdicts": judged,
        }
