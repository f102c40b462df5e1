"""The policy's adapters as files, a directory for each version: written whole, named by its content, never changed."""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from pathlib import Path

from airloop.learn.lora import save_adapter
from airloop.policy import Policy

# Versions: what is served, what replies under way were begun with, and one more for a server that is late. Replies are
# begun with older ones, too, where sampling goes on beside training.
KEPT = 3


class AdapterStore:
    """`base` is the model as servers know it, by which they tell whether an adapter is theirs."""

    def __init__(self, root: Path, base: str, older: int = 0) -> None:
        self.root = root
        self._base = base
        self._kept = KEPT + older
        self._owner = secrets.token_hex(4)  # several runs may use one server
        self._names: list[str] = []

    def put(self, policy: Policy, version: int) -> str:
        """The name under which servers know it: of the version and of what is in it."""
        assert policy.peft is not None
        scratch = self.root / f".{self._owner}-{version}.tmp"
        shutil.rmtree(scratch, ignore_errors=True)
        save_adapter(policy.peft, scratch)
        path = scratch / "adapter_config.json"
        config = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**config, "base_model_name_or_path": self._base}), encoding="utf-8")
        digest = hashlib.sha256((scratch / "adapter_model.safetensors").read_bytes()).hexdigest()
        name = f"air-{self._owner}-v{version}-{digest[:12]}"
        if (self.root / name).is_dir():  # the same again: a server may be reading it
            shutil.rmtree(scratch)
        else:
            scratch.rename(self.root / name)
        self._names = [*(kept for kept in self._names if kept != name), name]
        for old in self._names[: -self._kept]:
            shutil.rmtree(self.root / old, ignore_errors=True)
        self._names = self._names[-self._kept :]
        return name

    def clear(self) -> None:
        for name in self._names:
            shutil.rmtree(self.root / name, ignore_errors=True)
        self._names = []
