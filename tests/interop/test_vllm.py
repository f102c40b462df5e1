"""vLLM itself, the build for CPUs, as the engine of a run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from support import warm_process
from support.engine_conformance import CHECKS, PROMPT, agrees, change, check_versions
from support.guarded_process import pid_of
from support.interop_world import interpreter

from airloop.assemble import Components, assemble
from airloop.config import Config, load_config
from airloop.engine.base import Sampling
from airloop.engine.vllm.engine import VllmEngine
from airloop.engine.vllm.full import FullEngine, FullServer
from airloop.engine.vllm.plugin.weights import FILE, file_digest
from airloop.engine.vllm.server import RequestRejected, ServerLost
from airloop.models.tiny import save_tiny
from airloop.policy import Policy
from airloop.stats.intervals import difference
from airloop.training import start
from airloop.warmstart import warmstart
from airloop.watch.display.display import Display

pytestmark = pytest.mark.interop
WIDE = 128  # of the tiny model: heads of 16 numbers, as it has otherwise, are none of vLLM's
LORA = """
max_steps = 25
seq_len = 96
output_dir = "out"
[model]
name = "MODEL"
[ckpt]
interval = 100
[trainer.optim]
lr = 5e-3
[trainer.model.lora]
rank = 32
alpha = 64
[orchestrator]
batch_size = 128
rollouts_per_example = 8
max_concurrent = 128
[orchestrator.sampling]
max_tokens = 3
[orchestrator.eval]
num_examples = 25
rollouts_per_example = 4
[[orchestrator.env]]
id = "arith"
args = { max_number = 4, split_by = "none" }
[inference]
backend = "vllm"
max_batch = 128
[inference.vllm]
python = "PYTHON"
"""


BESIDE = ["--orchestrator.max_staleness", "4", "--trainer.loss.importance_mode", "mask"]


def config_of(folder: Path, model: Path, *flags: str) -> Config:
    toml = folder / "lora.toml"
    toml.write_text(LORA.replace("MODEL", str(model)).replace("PYTHON", interpreter("vllm")))
    return load_config(["@", str(toml), "--output_dir", str(folder / "out"), *flags])


def test_a_server_of_vllm_does_what_every_engine_must_and_is_started_again_when_it_is_killed(tmp_path: Path) -> None:
    """One server for all: it takes a minute to start."""

    async def whole(parts: Components) -> None:
        engine: Any = parts.engine
        assert isinstance(engine, VllmEngine)
        for check in CHECKS:
            await check(engine, parts.policy)
        await killed(engine, parts)

    async def killed(engine: VllmEngine, parts: Components) -> None:
        """It comes back by itself, with the policy as it is now."""
        (server,) = engine.servers
        os.kill(pid_of(server), signal.SIGKILL)
        while not server.lost:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        while server.lost:  # noqa: ASYNC110
            await asyncio.sleep(1.0)
        assert server.starts == 2
        assert agrees(parts.policy, PROMPT, await engine.generate(PROMPT, Sampling(16)))

    async def main() -> None:
        parts = assemble(config_of(tmp_path, save_tiny(tmp_path / "tiny", "llama", hidden=WIDE)), lambda text: None)
        try:
            await asyncio.wait_for(whole(parts), 900)
        finally:
            await parts.close()

    asyncio.run(main())


def test_a_server_of_vllm_pulls_adapters_over_http_and_refuses_what_is_altered(tmp_path: Path) -> None:
    """Started as one on another machine: with our plugin's folder and a key, and without a word of where files are."""

    async def whole(parts: Components) -> None:
        engine: Any = parts.engine
        await check_versions(engine, parts.policy)
        (server,), store = engine.servers, engine._store
        names = {model["id"]: model["root"] for model in (await server.client.get("/v1/models")).json()["data"]}
        assert engine._name in names and not Path(names[engine._name]).is_relative_to(store.root)
        here = {path.name for path in Path(names[engine._name]).parent.glob("air-*")}
        assert here <= set(store.names), "what the run has no more the server has not, either"
        change(parts.policy, 99)
        name = store.put(parts.policy, 99)
        weights = store.root / name / "adapter_model.safetensors"
        whole = weights.read_bytes()
        weights.write_bytes(whole[:-100])
        with pytest.raises(RequestRejected, match="has the digest"):
            await server.load(name, weights.parent)
        forged = name[:-1] + ("0" if name[-1] != "0" else "1")
        with pytest.raises(RequestRejected, match="is not the one that the adapter's name was signed with"):
            await server.load(forged, weights.parent)
        before = await engine.generate(PROMPT, Sampling(4))
        assert before.version == engine.version, "it goes on with what it has"
        weights.write_bytes(whole)
        await engine.publish(99)
        assert agrees(parts.policy, PROMPT, await engine.generate(PROMPT, Sampling(16)))

    async def main() -> None:
        model = save_tiny(tmp_path / "tiny", "llama", hidden=WIDE)
        parts = assemble(config_of(tmp_path, model, "--inference.vllm.adapters", "http"), lambda text: None)
        try:
            await asyncio.wait_for(whole(parts), 900)
        finally:
            await parts.close()

    asyncio.run(main())


def test_a_server_of_vllm_gets_all_the_weights_and_is_repaired_after_half_an_update(tmp_path: Path) -> None:
    async def whole(parts: Components) -> None:
        engine: Any = parts.engine
        assert isinstance(engine, FullEngine)
        await check_versions(engine, parts.policy)
        (server,), version = engine.servers, engine.version + 1
        change(parts.policy, 99, size=0.02)
        await half_updated(server, tmp_path / "half", parts.policy)
        assert await server.is_healthy(60.0), f"it is well by its own words\n{server.tail()}"
        await engine.publish(version)
        assert agrees(parts.policy, PROMPT, await engine.generate(PROMPT, Sampling(16)))
        await server._step("/start_weight_update")
        (tmp_path / "half" / FILE).write_bytes((tmp_path / "half" / FILE).read_bytes()[:-10])
        with pytest.raises(ServerLost, match="the file of weights has the digest"):
            what = {"path": str(tmp_path / "half" / FILE), "digest": engine._name.rpartition("-")[2]}
            await server._step("/update_weights", {"update_info": what})
        assert agrees(parts.policy, PROMPT, await engine.generate(PROMPT, Sampling(16))), "nothing was touched"
        assert server.starts == 1 and not server.lost

    async def half_updated(server: FullServer, folder: Path, policy: Policy) -> None:
        """Some of the weights are there, then comes one that does not fit."""
        folder.mkdir()
        weights = dict(policy.model.state_dict())
        last = sorted(weights)[-1]
        weights[last] = weights[last][:1].clone()
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / FILE)
        await server._step("/pause?mode=wait&clear_cache=true")
        with pytest.raises(ServerLost, match="Attempted to load weight"):
            await server._update(f"half-{file_digest(folder / FILE)}", folder)

    async def main() -> None:
        model = save_tiny(tmp_path / "tiny", "llama", hidden=WIDE)
        parts = assemble(config_of(tmp_path, model, "--trainer.model.train", "full"), lambda text: None)
        try:
            await asyncio.wait_for(whole(parts), 900)
        finally:
            await parts.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "beside", [pytest.param(False, id="in turns"), pytest.param(True, id="beside training", marks=pytest.mark.soak)]
)
def test_a_policy_learns_through_vllm(tmp_path: Path, beside: bool) -> None:
    """A supervised start of all the weights, then RL of an adapter above it, proofs included."""
    tiny = save_tiny(tmp_path / "tiny", "llama", hidden=WIDE)
    first = load_config(["arith", "--model.name", str(tiny), "--output_dir", str(tmp_path / "start")])
    started, _ = asyncio.run(warmstart(first, Display(quiet=True)))
    done = start(config_of(tmp_path, started / "model", *(BESIDE if beside else [])), Display(quiet=True))
    before, after = ([t.reward for t in side] for side in (done.outcome.before, done.outcome.after))
    assert difference(after, before, share=True).low > 0, done.text
    lines = done.run.metrics("train")
    gaps = [line["learner"]["logprob_gap_mean"] for line in lines]
    if beside:  # there only tokens of the policy itself are to agree
        gaps = [line["ages"]["0"]["gap"] for line in lines if "0" in line["ages"]]
        assert max(int(age) for line in lines for age in line["ages"]) in range(1, 5)
    assert gaps and max(gaps) < 1e-4, "what was trained is what was sampled"


APART = """
max_steps = 200
inference_gpu_ids = [0]
trainer_gpu_ids = [2, 3]
[orchestrator]
batch_size = 128
rollouts_per_example = 8
[[orchestrator.env]]
id = "arith"
"""


def test_a_config_with_gpus_apart_is_tried_by_ranks_on_the_cpu_and_a_server(tmp_path: Path) -> None:
    """As a person tries it, before the GPUs are there."""
    (tmp_path / "apart.toml").write_text(APART)
    words = ["train", "@", str(tmp_path / "apart.toml"), "--dry-run", "--json", "--inference.vllm.python"]
    done = warm_process.run([*words, interpreter("vllm")], timeout=600)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["processes"], facts["backend"], facts["episodes"], facts["infra_errors"]) == (2, "vllm", 8, 0)
    assert facts["tokens_trained"] > 0
