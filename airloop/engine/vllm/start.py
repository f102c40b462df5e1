"""The servers that a config asks for: their commands, environments, addresses and keys."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from airloop.config import Config
from airloop.config.vllm_rules import MEMORY, ON_GPUS, SERVED
from airloop.engine.vllm.adapter_server import HttpAdapterStore
from airloop.engine.vllm.adapters import AdapterStore
from airloop.engine.vllm.engine import VllmEngine
from airloop.engine.vllm.full import FullEngine, FullServer, FullStore
from airloop.engine.vllm.plugin.adapters import FOLDER, KEY
from airloop.engine.vllm.plugin.weights import BACKEND
from airloop.engine.vllm.plugin_folder import write_plugin
from airloop.engine.vllm.remote_servers import API_KEY, STATUS_FILE_VARIABLE, ServerStatusFile, servers_on
from airloop.engine.vllm.server import BASE, MODULE, VllmServer, free_port
from airloop.engine.vllm.shared import SharedEngine
from airloop.errors import AirError
from airloop.events import Say
from airloop.files import cache_directory
from airloop.policy import Policy
from airloop.ranks import ALL_GPUS, Ranks
from airloop.text.keys import note_keys

if TYPE_CHECKING:
    from airloop.models.loaded import Loaded

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # of adapters, that vLLM keeps room for
CPU_KV_GIB = 1
SHORTEST = 16  # letters of a key


def make_vllm_engine(config: Config, policy: Policy, loaded: Loaded, ranks: Ranks, say: Say, **_: object) -> VllmEngine:
    engine = _engine(config, policy, loaded, ranks)
    engine.say = say if ranks.first else engine.say  # all ranks ask the same servers
    return engine


def _engine(config: Config, policy: Policy, loaded: Loaded, ranks: Ranks) -> VllmEngine:
    """Its servers are started with the first request: a supervised start needs none."""
    full = policy.peft is None
    size = (config.seq_len, config.inference.max_batch)
    if not ranks.first:
        return SharedEngine(ranks, policy, (), AdapterStore(Path(), ""), *size)
    status_file = ServerStatusFile.from_environment()
    if policy.device.type == "cuda" and not (status_file or config.inference.vllm.urls or config.inference_gpu_ids):
        raise AirError(
            'backend = "vllm" starts a server on each of inference_gpu_ids, and none is named.',
            "name GPUs that do not train: trainer_gpu_ids = [0], inference_gpu_ids = [1].",
        )
    if policy.device.type == "cuda" and full:
        raise AirError(ON_GPUS, 'set trainer.model.train = "lora", or inference.backend = "embedded".')
    pulled = adapters_key(config) if config.inference.vllm.adapters == "http" else ""
    place = new_run_folder()
    model = base_directory(loaded, place)
    servers = _servers(config, policy, model, place, status_file)
    if full:
        return FullEngine(policy, servers, FullStore(place / "weights", ""), *size, place)
    store = _store(config, place, str(model), servers, pulled, status_file)
    made = (policy, servers, store, *size, place)
    return VllmEngine(*made) if ranks.size == 1 else SharedEngine(ranks, *made)


def _servers(
    config: Config, policy: Policy, model: Path, place: Path, status_file: ServerStatusFile | None
) -> list[VllmServer]:
    """Those that nodes keep, that are named by their addresses, or that we start."""
    vllm = config.inference.vllm
    if status_file is not None:
        return servers_on(status_file, os.environ.get(API_KEY, ""), config.seq_len)
    if vllm.urls:
        note_keys(given := os.environ.get(vllm.api_key_env, ""))
        known = (given, vllm.api_key_env, config.seq_len)
        return [VllmServer(url.rstrip("/").removesuffix("/v1"), *known) for url in vllm.urls]
    dtype = str(policy.dtype).removeprefix("torch.")
    gpus = [None if gpu is None else _device(gpu) for gpu in _gpus(config)]
    return [own_server(config, dtype, model, place, Location(number, gpu)) for number, gpu in enumerate(gpus)]


def _store(
    config: Config,
    place: Path,
    model: str,
    servers: Sequence[VllmServer],
    key: str,
    status_file: ServerStatusFile | None,
) -> AdapterStore:
    """Where adapters are for these servers, which pull them if there is a key; those of ours are started with what they
    need to."""
    vllm, older = config.inference.vllm, config.orchestrator.max_staleness  # versions that replies may be of
    for server in servers:
        server.older, server.pulls = older, bool(key)
        if key and server.command:
            enable_adapter_pull(server, place, key)
    where = (place / "adapters", model, older)
    if not key:
        return AdapterStore(*where)
    return HttpAdapterStore(*where, key, status_file.host if status_file else vllm.adapters_host, vllm.adapters_port)


def enable_adapter_pull(server: VllmServer, place: Path, key: str) -> None:
    """One that is about to be started, with a folder of its machine's."""
    server.env = {**server.env, **_with_plugin(place), KEY: key, FOLDER: str(place)}


def _with_plugin(place: Path) -> dict[str, str]:
    if not (place / "plugin").is_dir():
        write_plugin(place / "plugin")
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(place / "plugin"), os.environ.get("PYTHONPATH", ""))))}


def adapters_key(config: Config) -> str:
    """That servers and this run know each other by; those that we start get one of their own."""
    if not config.inference.vllm.urls and not os.environ.get(STATUS_FILE_VARIABLE):
        note_keys(made := secrets.token_urlsafe(24))
        return made
    key = os.environ.get(KEY, "")
    if len(key) < SHORTEST:
        raise AirError(
            f'inference.vllm.adapters = "http", but {KEY} is {"too short" if key else "not set"}: servers at '
            "inference.vllm.urls pull adapters from this run only if both have the same key.",
            f"set it to {SHORTEST} letters or more, here and for the servers: export {KEY}=$(openssl rand -hex 24)",
        )
    return key


def new_run_folder() -> Path:
    """For all that servers and their run have as files on one machine."""
    home = cache_directory() / "vllm"
    home.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="run-", dir=home))


def base_directory(loaded: Loaded, place: Path) -> Path:
    """The model as files; a tiny one is made in memory and has none."""
    return loaded.path if loaded.path is not None else _saved_tiny(loaded.name, place)


def base_model_here(name: str, place: Path) -> Path:
    """The same on a machine that only serves it: found, or fetched, as a learner does."""
    from airloop.models.sources import locate

    return _saved_tiny(name, place) if name.startswith("tiny:") else locate(name).path


def _saved_tiny(name: str, place: Path) -> Path:
    from airloop.models.tiny import save_tiny

    return save_tiny(str(place / "model"), name.removeprefix("tiny:"))


def _gpus(config: Config) -> list[int | None]:
    return [*config.inference_gpu_ids] if config.inference_gpu_ids and config.model.device != "cpu" else [None]


class Location(NamedTuple):
    """Where a server is to be: by default nobody but this machine reaches it, and its port and key are its own."""

    number: int = 0
    gpu: str | None = None  # as CUDA knows it
    host: str = "127.0.0.1"
    port: int = 0
    key: str = ""


def own_server(config: Config, dtype: str, model: Path, place: Path, location: Location) -> VllmServer:
    """To be started on this machine."""
    port, key, gpu = location.port or free_port(), location.key or secrets.token_urlsafe(24), location.gpu
    note_keys(key)
    full = config.trainer.model.train == "full"
    options = {
        "--model": str(model),
        "--served-model-name": BASE,
        "--host": location.host,
        "--port": str(port),
        "--dtype": dtype,
        "--max-model-len": str(config.seq_len),
        "--max-num-seqs": str(config.inference.max_batch),
        **({"--weight-transfer-config": json.dumps({"backend": BACKEND})} if full else _lora_options(config)),
        "--logprobs-mode": "processed_logprobs",
        "--generation-config": "vllm",  # nothing of the model's own ideas of sampling
        **({"--gpu-memory-utilization": str(_share(config))} if gpu is not None else {}),
    }
    flags = ["--enable-scale-out", "--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    flags += [] if full else ["--enable-lora"]
    if config.inference.model.enforce_eager or gpu is None:
        flags.append("--enforce-eager")
    if gpu is None:
        # After a part of a prompt vLLM takes a seeded draw back, which a CPU's generator cannot: the engine dies of it.
        flags.append("--no-enable-chunked-prefill")
    command = [interpreter(config), "-m", MODULE, *flags, *(word for option in options.items() for word in option)]
    env = {
        **({"VLLM_SERVER_DEV_MODE": "1", **_with_plugin(place)} if full else {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}),
        "VLLM_API_KEY": key,  # not in its command, which everybody on the machine can read
        "VLLM_NO_USAGE_STATS": "1",
        **({"CUDA_VISIBLE_DEVICES": gpu} if gpu is not None else {"VLLM_CPU_KVCACHE_SPACE": str(CPU_KV_GIB)}),
    }
    log = place / f"server-{location.number}.log"
    kind = FullServer if full else VllmServer
    return kind(f"http://{location.host}:{port}", key, context=config.seq_len, command=command, env=env, log=log)


def _lora_options(config: Config) -> dict[str, str]:
    rank = next((size for size in RANKS if size >= config.trainer.model.lora.rank), RANKS[-1])
    return {
        "--max-lora-rank": str(rank),
        "--max-loras": str(SERVED + config.orchestrator.max_staleness),
        "--max-cpu-loras": str(2 * SERVED + config.orchestrator.max_staleness),
    }


def _share(config: Config) -> float:
    """Of its GPU's memory, that a server takes."""
    return config.inference.gpu_memory_utilization or MEMORY


def _device(gpu: int) -> str:
    """As CUDA knows it: a config's numbers count what may be seen by who started the run; a rank sees less."""
    seen = os.environ.get(ALL_GPUS, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    visible = [name for name in seen.split(",") if name]
    if visible and gpu >= len(visible):
        raise AirError(
            f"inference_gpu_ids names GPU {gpu}, but only {len(visible)} may be seen here.",
            f"CUDA_VISIBLE_DEVICES is {','.join(visible)}: count from 0 among these.",
        )
    return visible[gpu] if visible else str(gpu)


def interpreter(config: Config) -> str:
    """That has vLLM: it may be another than ours, since vLLM wants a torch of its own."""
    named = config.inference.vllm.python
    if named is None:
        if importlib.util.find_spec("vllm") is None:
            raise AirError(
                'inference.backend = "vllm", but vLLM is not installed beside air.',
                'name an interpreter that has it: inference.vllm.python = "~/vllm/bin/python", or servers that run '
                'already: inference.vllm.urls = ["http://…:8000"].',
            )
        return sys.executable
    found = shutil.which(os.path.expanduser(named))
    if found is None:
        raise AirError(f"inference.vllm.python = {named!r} is no program.", "name an interpreter that has vLLM.")
    return found
