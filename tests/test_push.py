"""air export --push, with the hub's own client, against a hub on loopback. Its large files go the way of LFS: the newer
one, Xet, is a protocol of a library of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from support.hub_standin import TOKEN, Hub, hub_standin
from support.tiny_runs import tiny_run
from support.word_runs import word_run

from airloop.errors import AirError
from airloop.export.hub import push


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with hub_standin() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Small, with files that go either way."""
    directory = tmp_path / "export"
    directory.mkdir()
    (directory / "README.md").write_text("---\nlicense: mit\n---\n# it\n")
    (directory / "export.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


@pytest.mark.slow
def test_an_export_is_checked_then_pushed_whole(hub: Hub, air: Any, tmp_path: Path) -> None:
    words = ("export", word_run(), "--gguf", "--out", tmp_path / "out", "--push", "ada/sums", "--private")
    code, text, said = air(*words)
    assert code == 0 and f"pushed: {hub.url}/ada/sums/commit/1" in text, said
    assert hub.files["ada/sums"] == contents(tmp_path / "out") and hub.private["ada/sums"]
    assert {"README.md", "Modelfile", "export.json"} < hub.files["ada/sums"].keys()
    assert TOKEN not in text + said
    assert not [name for name, data in hub.files["ada/sums"].items() if TOKEN.encode() in data]


def test_a_repository_that_is_there_gets_the_new_files(hub: Hub, folder: Path) -> None:
    push(folder, "ada/sums", private=False)
    (folder / "export.json").write_text('{"step": 2}')
    assert push(folder, "ada/sums", private=False) == f"{hub.url}/ada/sums/commit/1"
    assert hub.files["ada/sums"] == contents(folder) and not hub.private["ada/sums"]
    with pytest.raises(AirError, match=r"already and public, and --private was asked for\. The export is whole"):
        push(folder, "ada/sums", private=True)


@pytest.mark.parametrize(
    ("token", "name", "problem"),
    [("hf_wrong", "ada/sums", "does not take the token"), (TOKEN, "bob/sums", "does not let this token write")],
)
def test_a_refusal_is_a_sentence_and_the_export_stays(
    token: str, name: str, problem: str, hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    before = contents(folder)
    with pytest.raises(AirError, match=problem) as error:
        push(folder, name, private=False)
    assert f"hf upload {name} {folder}" in error.value.fix and token not in str(error.value)
    assert contents(folder) == before and not hub.files


@pytest.mark.slow
@pytest.mark.parametrize("place", ["/api/repos/create", "/stored/", "/commit/"])
def test_a_hub_that_is_lost_half_way_is_a_sentence_and_the_export_stays(
    place: str, hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the client tries again, each time after a longer while
    hub.dies_at, before = place, contents(folder)
    with pytest.raises(AirError, match=r"was lost while ada/sums was pushed: .*\. The export is whole in") as error:
        push(folder, "ada/sums", private=False)
    assert TOKEN not in str(error.value) and contents(folder) == before
    assert not any(hub.files.values())
    hub.dies_at = ""
    push(folder, "ada/sums", private=False)
    assert hub.files["ada/sums"] == before


def test_what_cannot_be_pushed_is_refused_before_the_work(
    hub: Hub, air: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("export", word_run(), "--out", tmp_path / "out", "--push")
    assert "write it as OWNER/NAME" in air(*words, "sums")[2]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE forbids it" in air(*words, "ada/sums")[2]
    monkeypatch.delenv("HF_HUB_OFFLINE")
    for run in (word_run(), tiny_run()):
        problem = air("export", run, "--out", tmp_path / "out", "--push", "ada/sums")[2]
        assert "which nobody else has" in problem and "--merged or --gguf" in problem
    monkeypatch.delenv("HF_TOKEN")
    code, _, problem = air(*words, "ada/sums", "--json")
    assert code == 1 and "needs a token of the hub, and there is none here" in problem and "hf auth login" in problem
    assert not hub.asked and not (tmp_path / "out").exists()


def test_the_report_of_a_push_is_json(hub: Hub, air: Any, tmp_path: Path) -> None:
    words = ("export", tiny_run(), "--merged", "--out", tmp_path / "out", "--push", "ada/tiny", "--json")
    code, text, _ = air(*words)
    assert code == 0 and json.loads(text)["url"].startswith(hub.url) and not hub.private["ada/tiny"]
