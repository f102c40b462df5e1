"""What backend = "vllm" excludes, and what each is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from airloop.config import load_config
from airloop.config.mistakes import Refused
from airloop.config.vllm_rules import BACKEND
from airloop.engine.vllm.plugin.adapters import KEY
from airloop.engine.vllm.start import _device, _share, adapters_key, interpreter, make_vllm_engine
from airloop.errors import AirError
from airloop.launch.base import RankSpec
from airloop.launch.local import _surroundings
from airloop.launch.monitor import config_for_rank
from airloop.ranks import Ranks
from airloop.training import check_servers

VLLM = ["--inference.backend", "vllm", "--trainer_gpu_ids", "[0]", "--inference_gpu_ids", "[1, 2]"]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--trainer.model.train", "full"], "servers get the policy as an adapter"),
        (["--orchestrator.sampling.top_p", "0.9"], "log-probs of what is left"),
        (["--orchestrator.sampling.top_k", "50"], "log-probs of what is left"),
        (["--orchestrator.sampling.temperature", "2.5"], "vLLM samples at 2 at most"),
        (["--deterministic", "true"], "follow from the clock"),
        (["--inference_gpu_ids", "[0, 1]"], "share a GPU"),
        (["--orchestrator.eval.temperature", "3"], "vLLM samples at 2 at most"),
        (["--inference.kv_tokens", "4096"], "kv_tokens has no effect"),
        (["--inference.page_size", "16"], "page_size has no effect"),
        (["--inference.vllm.urls", '["http://127.0.0.1:8000"]'], "inference_gpu_ids has no effect"),
        (["--inference.vllm.api_key_env", "OURS"], "is for servers that run already"),
        (["--inference.vllm.adapters_port", "8700"], 'no effect with adapters = "files"'),
        (["--inference.vllm.adapters_host", "10.0.0.5"], 'no effect with adapters = "files"'),
        (["--inference.vllm.adapters", "http", "--inference.vllm.adapters_host", "0.0.0.0"], "is where to listen"),
    ],
)
def test_what_cannot_be_is_refused_with_its_correction(flags: list[str], told: str) -> None:
    with pytest.raises(Refused, match=told):
        load_config([*VLLM, *flags])


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--trainer.processes", "2"], "each has a shard of the weights"),
        (["--inference.vllm.urls", '["http://127.0.0.1:8000"]'], "ask for no key"),
        (["--inference.vllm.adapters", "http"], "ask for no key"),
        (
            ["--orchestrator.max_staleness", "1", "--trainer.loss.anchor", "sampler"],
            "replies under way were begun with",
        ),
    ],
)
def test_all_the_weights_are_for_one_process_on_a_cpu_that_takes_turns_with_its_servers(
    flags: list[str], told: str
) -> None:
    full = ["--inference.backend", "vllm", "--trainer.model.train", "full", "--model.device", "cpu"]
    config = load_config(full)
    with pytest.raises(Refused, match=told):
        load_config([*full, *flags])
    on_gpu: Any = SimpleNamespace(peft=None, device=torch.device("cuda"))
    config = config.model_copy(update={"inference_gpu_ids": [1]})  # as where the device is found, not said
    with pytest.raises(AirError, match="is for CPUs in this version"):
        make_vllm_engine(config, on_gpu, on_gpu, Ranks(), print)


def test_some_gpus_train_and_others_serve() -> None:
    config = load_config(VLLM)
    assert (config.ranks, config.gpus, config.inference_gpu_ids) == (1, [0], [1, 2])
    several = load_config([*VLLM, "--trainer_gpu_ids", "[0, 3]"])
    assert (several.ranks, several.gpus, several.inference_gpu_ids) == (2, [0, 3], [1, 2])
    rank = config_for_rank(several, "cuda")
    assert (rank.ranks, rank.gpus, rank.inference_gpu_ids) == (1, [0], [1, 2])
    with pytest.raises(Refused, match="a server on each of inference_gpu_ids, and none is named"):
        load_config(["--inference.backend", "vllm", "--trainer_gpu_ids", "[0]"])
    served = load_config(["--inference.backend", "vllm", "--inference.vllm.urls", '["http://127.0.0.1:8000"]'])
    assert served.inference.vllm.urls
    running = ["--inference.backend", "vllm", "--inference.vllm.urls", '["http://127.0.0.1:8000"]']
    with pytest.raises(Refused, match="gpu_memory_utilization has no effect with"):
        load_config([*running, "--inference.gpu_memory_utilization", "0.4"])


def test_several_trainer_processes_sample_beside_training_with_servers_only() -> None:
    beside = ["--orchestrator.max_staleness", "2", "--trainer.loss.anchor", "sampler"]
    several = ["--trainer_gpu_ids", "[0, 3]"]
    assert load_config([*VLLM, *several, *beside]).ranks == 2
    with pytest.raises(Refused, match="2 trainer processes needs servers of vLLM"):
        load_config([*several, *beside])
    apart = ["--trainer_gpu_ids", "[0, 3]", "--inference_gpu_ids", "[1]", "--orchestrator.max_async_level", "2"]
    with pytest.raises(Refused, match=r"--orchestrator.max_staleness 2"):
        load_config(apart)


def test_a_gpu_is_counted_among_those_that_may_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert _device(1) == "1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-7")
    assert _device(1) == "GPU-7"
    with pytest.raises(AirError, match="only 2 may be seen"):
        _device(2)
    rank = _surroundings(RankSpec("run", 1, 2, "folder", "cuda", False, gpu="4"))
    assert rank["CUDA_VISIBLE_DEVICES"] == "4"
    for name, value in rank.items():
        monkeypatch.setenv(name, value)
    assert _device(1) == "GPU-7", "as who started the ranks counts them"
    assert _share(load_config(VLLM)) == 0.9
    assert _share(load_config([*VLLM, "--inference.gpu_memory_utilization", "0.5"])) == 0.5


def test_its_keys_have_no_effect_without_it() -> None:
    with pytest.raises(Refused, match='has no effect with backend = "embedded"') as told:
        load_config(["--inference.vllm.urls", '["http://127.0.0.1:8000"]'])
    assert BACKEND.rpartition(".")[2] in str(told.value)


def test_servers_elsewhere_pull_adapters_only_with_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = ["--inference.backend", "vllm", "--inference.vllm.urls", '["http://127.0.0.1:8000"]']
    config = load_config([*elsewhere, "--inference.vllm.adapters", "http"])
    for key, told in (("", "is not set"), ("short", "is too short")):
        monkeypatch.setenv(KEY, key)
        with pytest.raises(AirError, match=told) as refused:
            check_servers(config)
        assert KEY in refused.value.fix
    monkeypatch.setenv(KEY, "0123456789abcdef")
    check_servers(config)
    assert adapters_key(config) == "0123456789abcdef"
    ours = load_config([*VLLM, "--inference.vllm.adapters", "http"])
    assert adapters_key(ours) != adapters_key(ours), "those that we start need nobody's"


def test_an_interpreter_without_vllm_is_told_before_anything_is_loaded() -> None:
    with pytest.raises(AirError, match="vLLM is not installed beside air"):
        interpreter(load_config(VLLM))
    with pytest.raises(AirError, match="is no program"):
        interpreter(load_config([*VLLM, "--inference.vllm.python", "/nowhere/python"]))
