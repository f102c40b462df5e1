"""F of FAILURES.md, before a run: each failure is made in the real learner or engine, and a proof must find it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import support.plain_ops  # noqa: F401 - our own forward pass on a CPU
import torch
from support.probe_cases import ARITH, TUNE, ask, case_of, chance, graded, ids_of

from airloop.assemble import Components, assemble
from airloop.chat.forest import Forest
from airloop.config import load_config
from airloop.doctor.base import checks
from airloop.doctor.case import Case
from airloop.doctor.checks.proofs import _same
from airloop.doctor.checks.tokens import CLOSE, OPEN, coloured, marked
from airloop.doctor.proof_tools import learner_state
from airloop.engine.base import Generation, Sampling
from airloop.engine.embedded import EmbeddedEngine
from airloop.engine.embedded.forward import Forward
from airloop.learn import advantages, batches, checkpoints, losses
from airloop.learn.batches import MicroBatch, PackedPlan, Row
from airloop.learn.learner import Learner
from airloop.loop import train
from airloop.policy import Policy
from airloop.runs.run import Run
from airloop.types import Branch
from airloop.watch.display.display import Display
from airloop_lab.faults import blindfold

PROOFS = [c.name for c in checks() if c.stage == "proof"]


@pytest.fixture
def arith() -> Iterator[Case]:
    with case_of(ARITH) as case:
        yield case


@pytest.fixture(scope="module")
def tune() -> Iterator[Case]:
    with case_of(TUNE) as case:
        yield case


@pytest.mark.long
@pytest.mark.parametrize(
    ("train", "kind"),
    [
        ("lora", "llama"),
        ("full", "qwen2"),
        pytest.param("lora", "qwen2", marks=pytest.mark.soak),
        pytest.param("full", "llama", marks=pytest.mark.soak),
    ],
)
def test_F_proofs_are_silent_on_a_healthy_learner(kind: str, train: str) -> None:
    with case_of(TUNE, model__name=f"tiny:{kind}", trainer__model__train=train) as case:
        for name in PROOFS:
            for finding in ask(case, name):
                assert finding.verdict == "pass", (name, finding)


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_F_proofs_are_silent_in_each_number_format(dtype: str) -> None:
    with case_of(ARITH, model__dtype=dtype) as case:
        assert {f.verdict for name in PROOFS for f in ask(case, name)} == {"pass"}


@pytest.mark.long
@pytest.mark.parametrize("loss", [name for name in losses.POLICY_LOSSES if name != "grpo"])
def test_F_proofs_are_silent_with_every_loss(loss: str) -> None:
    with case_of(ARITH, trainer__loss__type=loss) as case:
        for name in ("update_moves", "toy_reward_rises"):
            assert [f.verdict for f in ask(case, name)] == ["pass"]


# --- F1 -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_F1_a_loss_mask_used_as_attention_mask_is_caught() -> None:
    """The bug that cost weeks: the training forward sees only what the loss counts."""
    began = time.process_time()
    with blindfold(), case_of(TUNE) as case:
        (unseen,) = ask(case, "context_is_seen")
        (apart,) = ask(case, "trainer_agrees")
    assert unseen.verdict == "fail" and ids_of("context_is_seen", unseen) == ("F1",)
    assert unseen.seen == "the prompt was changed and the trainer's log-probs of the answer moved by 0"
    assert "a loss mask used as attention mask" in unseen.why and "PackedPlan" in unseen.fix
    assert apart.verdict == "fail" and "F1" in ids_of("trainer_agrees", apart)
    assert apart.seen.startswith("mean gap") and "in float32" in apart.seen and "(at most 0.001)" in apart.seen
    assert apart.why.startswith("the trainer computes other log-probs than rounding can explain")
    assert time.process_time() - began < 60


@pytest.mark.long
def test_F1_tool_results_that_the_trainer_cannot_see_are_caught(tune: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the results are hidden: the prompt is seen, so a proof on the prompt alone would pass."""
    original = PackedPlan.__init__

    def hiding(self: PackedPlan, batch: MicroBatch, device: torch.device) -> None:
        original(self, batch, device)
        for r, row in enumerate(batch.rows):
            (segment,) = batch.paths[r]
            first = row.train.index(True)
            hidden = torch.tensor([i >= first and not t for i, t in enumerate(row.train)])
            itself = torch.eye(len(row.tokens), dtype=torch.bool)
            self._masks[segment] = (self._masks[segment] & ~hidden[None]) | itself

    _ = tune.probe
    monkeypatch.setattr(PackedPlan, "__init__", hiding)
    (finding,) = ask(tune, "context_is_seen")
    assert finding.verdict == "fail" and finding.seen.startswith("a tool's result was changed and the trainer's")


@pytest.mark.slow
def test_F1_an_engine_that_forgets_the_prompt_is_caught(tune: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    original = EmbeddedEngine.generate

    async def forgetful(self: EmbeddedEngine, token_ids: Any, sampling: Sampling, order: str = "") -> Generation:
        return await original(self, token_ids[-1:], sampling, order)

    _ = tune.probe
    monkeypatch.setattr(EmbeddedEngine, "generate", forgetful)
    (finding,) = ask(tune, "context_is_seen")
    assert finding.verdict == "fail" and "the engine's log-probs of the answer moved by 0" in finding.seen


# --- F2 -----------------------------------------------------------------------------------------------


def engine_of(parts: Components, policy: Policy, **options: Any) -> EmbeddedEngine:
    return EmbeddedEngine(policy, context=parts.config.seq_len, max_batch=16, **options)


@pytest.mark.slow
def test_F2_an_adapter_that_never_reaches_the_engine_is_caught(arith: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's own forward pass keeps the adapter's rows beside the weights; nobody brings them up to date."""
    began = time.process_time()
    arith.parts.engine = engine_of(arith.parts, arith.parts.policy, own_forward=True)
    assert ask(arith, "adapter_arrives")[0].verdict == "pass"
    monkeypatch.setattr(Forward, "refresh", lambda self: None)
    (finding,) = ask(arith, "adapter_arrives")
    assert finding.verdict == "fail" and ids_of("adapter_arrives", finding) == ("F2",)
    assert "served log-probs moved by up to 0, the trainer's by" in finding.seen
    assert "goes on serving the old weights" in finding.why and "refresh()" in finding.fix
    assert time.process_time() - began < 60


@pytest.mark.long
def test_F2_an_engine_on_a_copy_of_the_model_is_caught(arith: Case) -> None:
    with case_of(ARITH) as other:
        arith.parts.engine = engine_of(arith.parts, other.parts.policy)
        assert "goes on serving the old weights" in ask(arith, "adapter_arrives")[0].why
        update, toy = ask(arith, "update_moves")[0], ask(arith, "toy_reward_rises")[0]
    assert update.verdict == "fail" and "does not reach the engine" in update.why
    assert toy.verdict == "fail" and "F2" in ids_of("toy_reward_rises", toy)


@pytest.mark.long
def test_F2_half_an_adapter_is_caught(arith: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is served moves, but not to where the trainer is."""
    arith.parts.engine = engine_of(arith.parts, arith.parts.policy, own_forward=True)
    original = Forward.refresh
    policy = arith.parts.policy

    def half(self: Forward) -> None:
        held = {n: p.detach().clone() for n, p in policy.trainable() if "layers.0" in n}
        with torch.no_grad():
            for name, parameter in policy.trainable():
                if name in held:
                    parameter.mul_(0)
            original(self)
            for name, parameter in policy.trainable():
                if name in held:
                    parameter.copy_(held[name])

    monkeypatch.setattr(Forward, "refresh", half)
    (finding,) = ask(arith, "adapter_arrives")
    assert finding.verdict == "fail" and "layer 0 stays behind" in finding.why


@pytest.mark.soak
def test_F1_F2_the_famous_ones_are_caught_on_the_default_model_within_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each from the loaded model to the finding; in seconds of the processor, as others may use it too."""
    flags = {**TUNE, "model.name": "HuggingFaceTB/SmolLM2-135M-Instruct", "seq_len": "768"}
    with case_of(flags) as case:
        _ = case.parts
        with blindfold():
            began = time.process_time()
            assert ask(case, "context_is_seen")[0].verdict == "fail"
            assert time.process_time() - began < 60
        case.parts.engine = engine_of(case.parts, case.parts.policy, own_forward=True)
        assert ask(case, "adapter_arrives")[0].verdict == "pass"
        monkeypatch.setattr(Forward, "refresh", lambda self: None)
        began = time.process_time()
        assert "goes on serving the old weights" in ask(case, "adapter_arrives")[0].why
        assert time.process_time() - began < 60


# --- F3 -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_F3_a_loss_on_tool_results_is_caught_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Forest._branch

    def greedy(self: Forest, replies: Any) -> Branch:
        branch = original(self, replies)
        first = branch.train.index(True)
        train = tuple(i >= first for i in range(len(branch.train)))
        return Branch(branch.tokens, train, branch.logprobs, branch.turns)

    monkeypatch.setattr(Forest, "_branch", greedy)
    with case_of(TUNE) as case:
        (finding,) = ask(case, "sampled_are_trained")
        assert finding.verdict == "fail" and ids_of("sampled_are_trained", finding) == ("F3",)
        assert "tokens are trained that nobody sampled" in finding.seen
        trained = finding.detail.partition(OPEN)[2]
        assert "cut off" in trained.partition(CLOSE)[0]  # what the environment said stands inside the marks


@pytest.mark.slow
def test_F3_the_healthy_mask_is_shown_too(tune: Case) -> None:
    (finding,) = ask(tune, "sampled_are_trained")
    assert finding.verdict == "pass" and "each as it was sampled" in finding.seen
    outside = "".join(piece.partition(CLOSE)[2] for piece in finding.detail.split(OPEN)[1:])
    assert "cut off" in outside
    trajectory = max(tune.probe.trajectories, key=lambda t: len(t.turns))
    text = marked(trajectory, tune.tokenizer)
    assert text.count(OPEN) == len(trajectory.turns)
    assert text.replace(OPEN, "").replace(CLOSE, "") == tune.tokenizer.decode(trajectory.branches[0].tokens)
    assert coloured(text).count("\x1b[1;32m") == text.count(OPEN)


def test_F3_a_learner_that_trains_the_prompt_is_caught(arith: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    original = batches._trained

    def everything(batch: MicroBatch) -> Any:
        rows = [Row(r.key, r.tokens, (False, *[True] * (len(r.tokens) - 1)), r.logprobs, 1.0, 1.0) for r in batch.rows]
        return original(MicroBatch(rows, batch.segments, batch.paths))

    monkeypatch.setattr(batches, "_trained", everything)
    (finding,) = ask(arith, "trainer_agrees")
    assert finding.verdict == "fail" and finding.ids == ("F3",) and "sampled tokens" in finding.seen


# --- F5 and A10 ---------------------------------------------------------------------------------------


def test_F5_frozen_parameters_are_caught(arith: Case) -> None:
    for parameter in arith.parts.learner.parameters:
        parameter.requires_grad_(False)
    (finding,) = ask(arith, "update_moves")
    assert finding.verdict == "fail" and finding.ids == ("F5",)
    assert "gradient norm 0" in finding.seen and "frozen" in finding.why and "requires_grad" in finding.fix


@pytest.mark.slow
def test_F5_an_optimiser_of_other_parameters_is_caught(arith: Case) -> None:
    """The gradients go to the model's own; the optimiser holds a copy that never gets any."""
    optimiser = arith.parts.learner.optimiser
    optimiser.parameters = [torch.nn.Parameter(p.detach().clone()) for p in optimiser.parameters]
    optimiser.masters = list(optimiser.parameters)
    optimiser.adam = torch.optim.AdamW(optimiser.masters)
    (finding,) = ask(arith, "update_moves")
    assert finding.verdict == "fail" and finding.ids == ("F5",) and "gradient norm 0" in finding.seen


@pytest.mark.slow
def test_F5_steps_that_bf16_rounds_away_are_caught() -> None:
    flags = {"model.dtype": "bfloat16", "trainer.model.train": "full", "trainer.optim.lr": "1e-5"}
    with case_of({**ARITH, **flags}) as case:
        assert ask(case, "update_moves")[0].verdict != "fail"
        optimiser = case.parts.learner.optimiser
        optimiser.masters = optimiser.weights  # no float32 masters: what the bug was
        optimiser.adam = torch.optim.AdamW(optimiser.masters)
        (finding,) = ask(case, "update_moves")
    assert finding.verdict == "fail" and finding.ids == ("F5",)
    assert "of the trained numbers changed" in finding.seen and "rounded away" in finding.why
    assert "float32" in finding.fix


def flip(monkeypatch: pytest.MonkeyPatch) -> None:
    right = losses.LOSSES["grpo"]

    def wrong(terms: Any, settings: Any) -> Any:
        loss, parts = right.token_loss(terms, settings)
        return -loss, parts

    monkeypatch.setitem(losses.LOSSES, "grpo", replace(right, token_loss=wrong))


@pytest.mark.slow
def test_F5_a_loss_with_the_wrong_sign_is_caught(arith: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    flip(monkeypatch)
    (finding,) = ask(arith, "update_moves")
    assert finding.verdict == "fail" and finding.ids == ("F5",) and "chosen tokens -" in finding.seen
    (toy,) = ask(arith, "toy_reward_rises")
    assert toy.verdict == "fail" and "did not raise it" in toy.why and len(toy.detail.split()) <= 40


@pytest.mark.slow
def test_F5_advantages_with_the_wrong_sign_are_caught(arith: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """One update with a given advantage is right; the toy goes through the advantages too."""
    right = advantages.group_advantages
    monkeypatch.setattr(advantages, "group_advantages", lambda *a, **k: [-x for x in right(*a, **k)])
    assert ask(arith, "update_moves")[0].verdict == "pass"
    assert ask(arith, "toy_reward_rises")[0].verdict == "fail"


@pytest.mark.slow
def test_A10_a_learning_rate_that_moves_nothing_is_told() -> None:
    with case_of(ARITH, trainer__optim__lr="1e-7") as case:
        (finding,) = ask(case, "update_moves")
    assert finding.verdict == "warn" and finding.ids == ("A10",)
    assert "if all 20 steps pushed the same way" in finding.why
    assert 1e-6 < finding.lines["trainer.optim.lr"] < 1e-2
    with case_of(ARITH, trainer__optim__lr=str(finding.lines["trainer.optim.lr"])) as case:
        assert ask(case, "update_moves")[0].verdict == "pass"


# --- G2 -----------------------------------------------------------------------------------------------


def no_optimiser(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Learner.state
    monkeypatch.setattr(
        Learner, "state", lambda s: {**original(s), "optimiser": torch.optim.AdamW(s.optimiser.masters).state_dict()}
    )


def no_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Learner, "set_weights", lambda self, tensors: None)


def no_random_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "set_random_states", lambda states: None)


def no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Learner.state
    monkeypatch.setattr(Learner, "state", lambda self: {**original(self), "updates": 0})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lose", "named"),
    [(no_optimiser, "optimiser"), (no_adapter, "weights"), (no_random_states, "random"), (no_count, "updates")],
)
def test_G2_a_checkpoint_that_lost_something_is_caught(
    arith: Case, monkeypatch: pytest.MonkeyPatch, lose: Callable[[pytest.MonkeyPatch], None], named: str
) -> None:
    lose(monkeypatch)
    (finding,) = ask(arith, "checkpoint_restores")
    assert finding.verdict == "fail" and ids_of("checkpoint_restores", finding) == ("G2",)
    assert finding.seen == f"after loading a checkpoint, not as they were saved: {named}"


def test_G2_a_checkpoint_without_the_policys_version_is_caught(arith: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    original = checkpoints.save_checkpoint

    def save(directory: Path, learner: Learner, step: int) -> Path:
        learner.policy.version, kept = 0, learner.policy.version
        try:
            return original(directory, learner, step)
        finally:
            learner.policy.version = kept

    monkeypatch.setattr(checkpoints, "save_checkpoint", save)
    assert "version" in ask(arith, "checkpoint_restores")[0].seen


# --- nothing is left behind ---------------------------------------------------------------------------


@pytest.mark.long
def test_probes_and_proofs_leave_no_trace_in_the_learner(tune: Case, tmp_path: Path) -> None:
    before, settings = learner_state(tune.parts), tune.parts.learner.settings
    for name in PROOFS:
        ask(tune, name)
        after = learner_state(tune.parts)
        assert [key for key in before if not _same(before[key], after[key])] == [], name
    assert tune.parts.learner.settings == settings and tune.parts.engine.version == tune.parts.policy.version == 0
    assert all(gradient is None for gradient in tune.parts.learner.optimiser.take_gradients())


@pytest.mark.long
def test_a_run_after_probes_and_proofs_is_the_same_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 9: what is done before the first step does not show in the run."""
    graded(monkeypatch, lambda text: {"correct": chance(text)})
    flags = {**ARITH, "deterministic": "true", "max_steps": "2", "ckpt.interval": "2", "trainer.optim.lr": "1e-2"}
    flags |= {"orchestrator.eval.num_examples": "2"}

    async def work(directory: Path, proving: bool) -> Path:
        words = [w for key, value in {**flags, "output_dir": str(directory)}.items() for w in (f"--{key}", value)]
        config = load_config(words)
        run = Run.create(config, "proofs")
        parts = assemble(config, print)
        try:
            if proving:
                case = Case(config, parts=parts, loop=asyncio.get_running_loop())
                names = [c.name for c in checks() if c.stage != "fast"]
                await asyncio.to_thread(lambda: [ask(case, name) for name in names])
            await train(parts, run, Display(quiet=True))
        finally:
            await parts.close()
            run.close()
            torch.use_deterministic_algorithms(False)
        return run.path

    plain, proved = (asyncio.run(work(tmp_path / str(p), p)) for p in (False, True))
    assert [m["learner"]["tokens_trained"] > 0 for m in Run.open(proved).metrics("train")] == [True, True]
    for step in (0, 1):
        records = [(path / "tokens" / f"step_{step:04d}.jsonl").read_text() for path in (plain, proved)]
        assert without_ids(records[0]) == without_ids(records[1])
    saved = [torch.load(p / "checkpoints" / "step_2" / "state.pt", weights_only=True) for p in (plain, proved)]
    assert _same(saved[0]["learner"], saved[1]["learner"]) and _same(saved[0]["random"], saved[1]["random"])
    adapters = [(p / "checkpoints" / "step_2" / "adapter" / "adapter_model.safetensors") for p in (plain, proved)]
    assert adapters[0].read_bytes() == adapters[1].read_bytes()


def without_ids(record: str) -> list[dict[str, Any]]:
    """Ids hold the time of day."""
    return [{k: v for k, v in json.loads(line).items() if k != "id"} for line in record.splitlines()]
