"""Adapters that a server fetches from the run that trains them: vLLM asks this plugin for every unknown model name.

The name has all that is needed: `air-RUN-vVERSION-DIGEST@HOST:PORT.MAC`. It is signed with this server's key, so nobody
else can make the server connect to an address; a download without the right digest is discarded.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import http.client
import json
import os
import re
import shutil
import tempfile
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Any

from .weights import DIGITS, PIECE, file_digest

KEY = "AIR_ADAPTERS_KEY"  # in the environment of both sides
FOLDER = "AIR_ADAPTERS_DIR"  # in the server's: where they lie while it runs; by default the system's temporary folder
FILES = ("adapter_config.json", "adapter_model.safetensors")
LIST_ROUTE = "/kept"  # the names of all that the run still serves
PROOF = "X-Air-Proof"
NAME = re.compile(r"(?P<run>air-[0-9a-f]{8})-v\d+-(?P<digest>[0-9a-f]{32})@(?P<at>[^@/\s]+:\d+)\.(?P<mac>[0-9a-f]{32})")
TRIES = 3
PAUSE_S = 0.5
SILENT_S = 60.0


class Wrong(ValueError):
    """An error that a retry would not change. vLLM answers a ValueError with status 400 and its text."""


def digest(folder: Path) -> str:
    """The digest of an adapter: of all its files that vLLM reads."""
    whole = hashlib.sha256()
    for name in FILES:
        whole.update(file_digest(folder / name).encode())
    return whole.hexdigest()[:DIGITS]


def mac(key: str, use: str, text: str) -> str:
    return hmac.new(key.encode(), f"{use} {text}".encode(), hashlib.sha256).hexdigest()[:DIGITS]


def signed(key: str, name: str, at: str) -> str:
    """The signed name of an adapter that is served at an address."""
    return f"{name}@{at}.{mac(key, 'name', f'{name}@{at}')}"


class Adapters:
    """Implements vLLM's LoRAResolver."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._lock = threading.Lock()
        self._pulling: dict[str, threading.Lock] = {}  # by name, while it is pulled
        self._place: tempfile.TemporaryDirectory[str] | None = None

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> Any:
        if "@" not in lora_name or not lora_name.startswith("air-"):
            return None  # not one of ours
        from vllm.lora.request import LoRARequest

        path = await asyncio.to_thread(self.pull, lora_name)
        return LoRARequest(lora_name=lora_name, lora_int_id=1, lora_path=str(path))  # vLLM puts its own number in

    def pull(self, name: str) -> Path:
        """The folder with an adapter. vLLM reads it again after it had to make room: it stays while the run has it."""
        found = NAME.fullmatch(name)
        if not found or not hmac.compare_digest(found["mac"], mac(self._key, "name", name.rpartition(".")[0])):
            raise Wrong(f"this server's {KEY} is not the one that the adapter's name was signed with")
        with self._lock:  # runs, and ranks of one run, may come at the same time
            self._place = self._place or tempfile.TemporaryDirectory(prefix="air-adapters-", dir=os.environ.get(FOLDER))
            pulling = self._pulling.setdefault(name, threading.Lock())
        path = Path(self._place.name) / name
        with pulling:  # who comes second finds it there
            if not path.is_dir():
                self._download(found["at"], path, found["digest"])
                with contextlib.suppress(OSError, ValueError, http.client.HTTPException):  # the next one will find it
                    self._sweep(found["at"], path, found["run"])
        with self._lock:
            self._pulling.pop(name, None)
        return path

    def _download(self, at: str, path: Path, wanted: str) -> None:
        for left in reversed(range(TRIES)):
            scratch = Path(tempfile.mkdtemp(dir=path.parent, prefix="."))
            try:
                for file in FILES:
                    self._get(at, f"/{path.name}/{file}", scratch / file)
                if (came := digest(scratch)) != wanted:
                    raise ValueError(f"what came of the adapter has the digest {came}, and its name says {wanted}")
                scratch.rename(path)
                return
            except (OSError, ValueError, http.client.HTTPException) as error:
                if isinstance(error, Wrong) or (isinstance(error, ValueError) and not left):
                    raise
                if not left:
                    raise OSError(f"the run's adapters cannot be had at {at}: {error!r}") from error
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
            time.sleep(PAUSE_S)

    def _sweep(self, at: str, path: Path, run: str) -> None:
        """Removes adapters of this run that it serves no longer: of those that were here before it was asked, as a
        newer one may come meanwhile."""
        here, answer = list(path.parent.glob(f"{run}-*")), path.with_name(f".{path.name}.json")
        try:
            self._get(at, LIST_ROUTE, answer)
            served = json.loads(answer.read_text(encoding="utf-8"))
        finally:
            answer.unlink(missing_ok=True)
        for old in here:
            if old.name not in served:
                shutil.rmtree(old, ignore_errors=True)

    def _get(self, at: str, route: str, into: Path) -> None:
        """Without a proxy, whatever the environment says: the address is one of the machines that train."""
        connection = http.client.HTTPConnection(at, timeout=SILENT_S)
        try:
            connection.request("GET", urllib.parse.quote(route), headers={PROOF: mac(self._key, "get", route)})
            answer = connection.getresponse()
            if answer.status in (403, 404):
                raise Wrong(f"the run answers {answer.status} at {at}: {answer.read(500).decode(errors='replace')}")
            if answer.status != 200:
                raise OSError(f"{answer.status} {answer.reason}")
            with into.open("wb") as file:
                shutil.copyfileobj(answer, file, PIECE)
        finally:
            connection.close()


def register() -> None:
    """The plugin's entry point: vLLM calls it in each of its processes."""
    if key := os.environ.get(KEY):
        from vllm.lora.resolver import LoRAResolverRegistry

        LoRAResolverRegistry.register_resolver("air", Adapters(key))
