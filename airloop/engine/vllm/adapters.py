"""The policy's adapters as files, a directory for each version: written whole, named by its content, never changed."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from airloop.engine.vllm.plugin.adapters import digest
from airloop.learn.lora import save_adapter
from airloop.policy import Policy

# Versions: what is served, what replies under way were begun with, and one more for a server that is late. Replies are
# begun with older ones, too, where sampling goes on beside training.
KEPT_VERSIONS = 3


class AdapterStore:
    """`base` is the model's name on the servers, by which they check that an adapter fits."""

    def __init__(self, root: Path, base: str, older: int = 0) -> None:
        self.root = root
        self._base = base
        self._kept = KEPT_VERSIONS + older
        self._owner = secrets.token_hex(4)  # several runs may use one server
        self.names: list[str] = []  # of those that are there, the newest last
        self._holds: Counter[str] = Counter()  # by name, how often it is held
        self._changing = threading.Lock()  # versions are put in a thread of their own

    def put(self, policy: Policy, version: int) -> str:
        """Writes an adapter; its name on the servers, of the version and a digest of its content."""
        scratch = self.root / f".{self._owner}-{version}.tmp"
        shutil.rmtree(scratch, ignore_errors=True)
        self._write(policy, scratch)
        name = self._called(f"air-{self._owner}-v{version}-{self._digest(scratch)}")
        if (self.root / name).is_dir():  # the same again: a server may be reading it
            shutil.rmtree(scratch)
        else:
            scratch.rename(self.root / name)
        with self._changing:
            self.names = [*(other for other in self.names if other != name), name]
            self._drop_old()
        return name

    @contextlib.contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Keeps a version as long as anybody is in here, whatever is put meanwhile."""
        with self._changing:
            self._holds[name] += 1
        try:
            yield
        finally:
            with self._changing:
                self._holds[name] -= 1
                if not self._holds[name]:
                    del self._holds[name]
                    self._drop_old()

    def is_held(self, name: str) -> bool:
        return name in self._holds

    def has(self, name: str) -> bool:
        """Whether its files are there."""
        return bool(name) and (self.root / name).is_dir()

    def _drop_old(self) -> None:
        old = [name for name in self.names[: -self._kept] if name not in self._holds]
        self.names = [name for name in self.names if name not in old]
        for name in old:
            shutil.rmtree(self.root / name, ignore_errors=True)

    def _write(self, policy: Policy, folder: Path) -> None:
        assert policy.peft is not None
        save_adapter(policy.peft, folder)
        path = folder / "adapter_config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**config, "base_model_name_or_path": self._base}), encoding="utf-8")

    def _digest(self, folder: Path) -> str:
        return digest(folder)

    def _called(self, name: str) -> str:
        return name

    def clear(self) -> None:
        for name in self.names:
            shutil.rmtree(self.root / name, ignore_errors=True)
        self.names = []
