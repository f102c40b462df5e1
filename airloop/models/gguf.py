"""A GGUF file turned, once, into a model directory in transformers form: dequantised, as bf16 safetensors.

bf16 because that is what these models were trained and published in: rounding moves a weight by 0.13 % of
its size, where 4-bit quantisation has already moved it by about 8 %; the directory is half as large.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airloop.errors import AirError
from airloop.events import Say
from airloop.models.chat_forms import CHATML
from airloop.models.checks import check_config
from airloop.models.gguf_header import check_header, read_texts
from airloop.models.gguf_rope import TENSOR, scaled_positions
from airloop.text.figures import duration
from airloop.waits import Wait, waiting

MANIFEST = "air.json"
# For one of its three parts; gigabytes take minutes.
CONVERSION_S = 1800.0
GLANCE_S = 0.5  # going through its tensors for their names takes less
MB = 1_000_000
FORM = 2  # of a conversion; a larger number makes old ones be done again
# Two copies of one matrix, each quantised in its own way, are some hundredths of its size apart; two matrices are
# farther apart than either is large.
ONE_MATRIX = 0.25

# Transformers' GGUF reader gives every "gpt2" tokenizer of a Llama the split of GPT-2; these models' own:
SPLITS = {
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
}
SHORT = {"bfloat16": "bf16", "float32": "fp32"}
GPT2_SPLIT = ("default", "gpt-2", "gpt2")


@dataclass(frozen=True, slots=True)
class Conversion:
    """A place in the cache, with a manifest written last: whole if every file is as the manifest says."""

    path: Path

    @property
    def note(self) -> str:
        return str(self._manifest().get("note", ""))

    @property
    def licence(self) -> str | None:
        """As the file said it; None: it did not, or was converted by a version that did not ask."""
        return self._manifest().get("licence")

    @property
    def source(self) -> Path | None:
        """The file, which may be gone."""
        said = self._manifest().get("source")
        return Path(said) if said else None

    def _manifest(self) -> dict[str, Any]:
        try:
            manifest = json.loads((self.path / MANIFEST).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return manifest if isinstance(manifest, dict) else {}

    def is_whole(self) -> bool:
        manifest = self._manifest()
        files = manifest.get("files")
        if manifest.get("form") != FORM or not isinstance(files, dict) or "config.json" not in files:
            return False
        return all(_fingerprint(self.path / name) == seen for name, seen in files.items())

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Held by the one process that fetches and converts."""
        from filelock import FileLock  # torch and huggingface_hub bring it

        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.parent / f".{self.path.name}.lock"):
            yield


def conversion(cache: Path, key: str) -> Conversion:
    return Conversion(cache / "models" / key)


def _fingerprint(path: Path) -> list[int] | None:
    """Size and CRC-32: against cut-off and damaged files, at the speed of reading them."""
    try:
        with path.open("rb") as stream:
            size = crc = 0
            while chunk := stream.read(1 << 22):
                size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    except OSError:
        return None
    return [size, crc]


def convert(
    gguf: Path, target: Conversion, *, name: str, say: Say, locked: bool = False, dtype: str = "bfloat16"
) -> Conversion:
    """Converts unless it is done already; the target appears whole or not at all. In fp32 it has every bit of the file,
    to be compared with."""
    with contextlib.nullcontext() if locked else target.lock():
        if target.is_whole():
            return target
        say(f"converting {gguf.name} to safetensors in {target.path} (once, under a minute for a small model)")
        for leftover in target.path.parent.glob(f".{target.path.name}.tmp-*"):  # of a killed process
            shutil.rmtree(leftover, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(dir=target.path.parent, prefix=f".{target.path.name}.tmp-"))
        try:
            with (
                waiting(f"{gguf.name} in safetensors", "the conversion", CONVERSION_S, here=True) as wait,
                _read_once(wait),
            ):
                note, licence = _write(gguf, scratch, name, wait, dtype)
            files = {file.name: _fingerprint(file) for file in sorted(scratch.iterdir())}
            for file in scratch.iterdir():
                file.chmod(0o644)  # as other caches are: readable by the machine's other users
            facts = {"form": FORM, "name": name, "source": str(gguf), "note": note}
            manifest = {**facts, "licence": licence, "files": files}
            (scratch / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
            scratch.chmod(0o755)
            shutil.rmtree(target.path, ignore_errors=True)
            scratch.rename(target.path)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return target


@contextlib.contextmanager
def _read_once(wait: Wait) -> Iterator[None]:
    """transformers opens the file for the config, for the weights and for the tokenizer, and each time all words of the
    vocabulary are looked at one by one, which is most of a conversion. Slices of a memory map are so much slower than
    those of a plain array that they took a third of it."""
    import gguf
    import numpy

    names: Any = vars(gguf)
    reader = names["GGUFReader"]

    class PlainReader(gguf.GGUFReader):
        data: Any

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.tensors = _Followed(self.tensors, wait)

        def _get(self, *args: Any, **named: Any) -> Any:
            self.data = self.data.view(numpy.ndarray)
            return super()._get(*args, **named)

    names["GGUFReader"] = functools.lru_cache(maxsize=1)(PlainReader)
    try:
        yield
    finally:
        names["GGUFReader"] = reader


class _Followed(list[Any]):
    """A file's tensors. Whoever goes through them to read them tells how far it is, by their bytes, and how long the
    rest of them takes."""

    def __init__(self, tensors: Iterable[Any], wait: Wait) -> None:
        super().__init__(tensors)
        self._wait = wait

    def __iter__(self) -> Iterator[Any]:
        began, done, total = time.monotonic(), 0, sum(int(tensor.n_bytes) for tensor in super().__iter__())
        for tensor in super().__iter__():
            yield tensor
            done, spent = done + int(tensor.n_bytes), time.monotonic() - began
            if spent > GLANCE_S and 0 < done < total:
                left = duration(spent * (total - done) / done)
                self._wait.progress(
                    f"{done / MB:.0f} of {total / MB:.0f} MB of weights read, {left} left for them, 0 of 3"
                )


def _write(gguf: Path, scratch: Path, name: str, wait: Wait, dtype: str) -> tuple[str, str | None]:
    """What is to be said of the weights, and the licence that the file names."""
    import torch
    from transformers import AutoModelForCausalLM

    from airloop.models.silence_transformers import silenced

    header = _read_header(gguf)
    with silenced():
        try:
            config = _config(gguf, header)
            with contextlib.redirect_stderr(io.StringIO()):  # a progress bar that cannot be switched off
                model: Any = AutoModelForCausalLM.from_pretrained(
                    gguf.parent,
                    gguf_file=gguf.name,
                    config=config,
                    dtype=getattr(torch, dtype),
                    local_files_only=True,
                    trust_remote_code=False,
                )
        except AirError:
            raise
        except Exception as error:
            raise AirError(
                f"transformers cannot read {gguf} (architecture {header['architecture']!r}): {error}",
                "give the model in transformers form (a directory with config.json and safetensors)",
            ) from error
        tied = _tie_embeddings(model, gguf)
        wait.progress("weights read, 1 of 3")
        tokenizer, note = _tokenizer(gguf, header)
        wait.progress("tokenizer read, 2 of 3")
        # The weights are plain numbers now; an entry left in config.json would say they are not.
        del model.config.quantization_config
        model.is_quantized = False
        model.hf_quantizer = None
        model.config.architectures = [type(model).__name__]
        check_config(model.config.to_dict(), name)
        limit = getattr(model.config, "max_position_embeddings", None)
        tokenizer.model_max_length = limit or tokenizer.model_max_length
        model.save_pretrained(scratch)
        tokenizer.save_pretrained(scratch)
    said = f"its weights were {header['quantisation']} and are dequantised to {SHORT[dtype]}{tied}{note}"
    return said, read_texts(gguf).get("general.license")


def _config(gguf: Path, header: dict[str, Any]) -> Any:
    """As transformers reads it, and with what it leaves out: the length of a head, which it takes from its own class
    for a Qwen3, and scaled positions."""
    from gguf import GGUFReader
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name, trust_remote_code=False)
    if header["head_length"] and hasattr(config, "head_dim"):
        config.head_dim = header["head_length"]
    factors = next((tensor.data for tensor in GGUFReader(str(gguf)).tensors if tensor.name == TENSOR), None)
    if factors is not None:
        config.rope_parameters = scaled_positions(config, factors, str(gguf))
    return config


def _tie_embeddings(model: Any, gguf: Path) -> str:
    """Files of models whose input and output embeddings are one matrix may hold it twice, at different precision. Then
    it is one again, as it was trained: the more precise copy. What was done, for the note."""
    from gguf import GGUFReader

    stored = {t.name: t for t in GGUFReader(str(gguf)).tensors if t.name in ("token_embd.weight", "output.weight")}
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    if len(stored) < 2 or ends[0].weight is ends[1].weight or ends[0].weight.shape != ends[1].weight.shape:
        return ""
    words, head = (end.weight.detach().float() for end in ends)
    if not (words - head).norm() < ONE_MATRIX * head.norm():
        return ""
    kinds = [stored["token_embd.weight"], stored["output.weight"]]
    bits = [8 * int(t.n_bytes) / int(t.n_elements) for t in kinds]
    precise = bits[1] >= bits[0]
    ends[0].weight.data.copy_(ends[precise].weight.data)
    model.config.tie_word_embeddings = True
    model.tie_weights()
    names = " and ".join(t.tensor_type.name for t in kinds)
    return f"; input and output embeddings, stored apart ({names}), are one matrix, {kinds[precise].tensor_type.name}"


def _read_header(gguf: Path) -> dict[str, Any]:
    """The few fields of the GGUF that transformers does not pass on."""
    from gguf import GGUFReader, LlamaFileType

    check_header(gguf)
    try:
        fields = GGUFReader(str(gguf)).fields  # as transformers calls it
    except Exception as error:
        raise AirError(f"{gguf} is not a whole GGUF file: {error}", "fetch it again") from error

    def value(key: str, default: Any) -> Any:
        return fields[key].contents() if key in fields else default

    file_type = value("general.file_type", None)
    architecture = value("general.architecture", "?")
    known = {int(kind): kind.name.removeprefix("MOSTLY_") for kind in LlamaFileType}
    return {
        "architecture": architecture,
        "head_length": value(f"{architecture}.attention.key_length", None),
        "quantisation": known.get(file_type, "quantised"),
        "tokenizer": value("tokenizer.ggml.model", "?"),
        "split": value("tokenizer.ggml.pre", "default"),
    }


def _tokenizer(gguf: Path, header: dict[str, Any]) -> tuple[Any, str]:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, trust_remote_code=False)
    except Exception as error:
        raise AirError(f"transformers cannot read the tokenizer in {gguf}: {error}") from error
    note = ""
    if header["tokenizer"] == "gpt2" and not _set_split(tokenizer, header["split"]):
        note = f"; its tokenizer splits text as {header['split']!r}, which transformers only approximates"
    if not tokenizer.chat_template and {"<|im_start|>", "<|im_end|>"} <= tokenizer.get_vocab().keys():
        tokenizer.chat_template = CHATML
        note += "; it brings no chat template, so ChatML is used"
    return tokenizer, note


def _set_split(tokenizer: Any, split: str) -> bool:
    """Gives the tokenizer its model's own way of cutting text into words; False if we do not know it."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

    backend = tokenizer.backend_tokenizer
    if split == "smollm":
        backend.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    elif split in SPLITS:
        words = Split(Regex(SPLITS[split]), behavior="isolated")
        backend.pre_tokenizer = Sequence([words, ByteLevel(add_prefix_space=False, use_regex=False)])
    return split == "smollm" or split in SPLITS or split in GPT2_SPLIT
