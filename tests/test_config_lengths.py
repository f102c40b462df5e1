"""One length, in the four keys that files of prime-rl and of earlier runs have for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airloop.config import load_config, to_toml
from airloop.config.lengths import ENGINE, OURS, SAMPLED, TRAINED
from airloop.config.mistakes import Refused

KEYS = (OURS, SAMPLED, ENGINE, TRAINED)
LENGTHS = (64, 1024, 4096)


def flags(said: dict[str, int]) -> list[str]:
    return [word for key, value in said.items() for word in (f"--{key}", str(value))]


def write(directory: Path, said: dict[str, int]) -> Path:
    file = directory / "run.toml"
    file.write_text("".join(f"{key} = {value}\n" for key, value in said.items()))
    return file


def test_a_run_of_an_earlier_version_has_the_length_that_it_was_sampled_at(tmp_path: Path) -> None:
    """Its config has all of them; the engine's was the shortest, and nobody was refused for it then."""
    said = {OURS: 4096, SAMPLED: 4096, TRAINED: 4096, ENGINE: 1024}
    assert load_config(["@", str(write(tmp_path, said))], environments=False).seq_len == 1024
    assert load_config(["@", str(write(tmp_path, {OURS: 4096, SAMPLED: 1024}))], environments=False).seq_len == 1024


@pytest.mark.parametrize(
    ("said", "length"),
    [
        ({}, 2048),
        ({OURS: 4096}, 4096),
        ({SAMPLED: 4096}, 4096),
        ({ENGINE: 1024}, 1024),
        ({ENGINE: 4096}, 2048),  # what the engine could hold makes no episode longer
        ({TRAINED: 4096}, 2048),
        ({SAMPLED: 1024, TRAINED: 4096, ENGINE: 4096}, 1024),
        ({OURS: 1024, SAMPLED: 1024, TRAINED: 1024, ENGINE: 1024}, 1024),
        ({OURS: 1024, ENGINE: 4096}, 1024),
    ],
)
def test_each_key_is_read_as_the_one_length(said: dict[str, int], length: int, tmp_path: Path) -> None:
    for argv in (flags(said), ["@", str(write(tmp_path, said))]):
        assert load_config(argv, environments=False).seq_len == length


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({OURS: 4096, SAMPLED: 1024}, ["your choice", "seq_len = 4096 and orchestrator.seq_len = 1024"]),
        ({OURS: 4096, ENGINE: 1024}, ["your choice", "inference.model.max_model_len = 1024"]),
        ({SAMPLED: 4096, TRAINED: 1024}, ["may grow to 4096", "seq_len = 4096"]),
    ],
)
def test_lengths_that_contradict_each_other_are_refused(said: dict[str, int], words: list[str], tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        load_config(["@", str(write(tmp_path, said))])
    assert len(caught.value.mistakes) == 1 and all(word in str(caught.value) for word in [*words, "run.toml:1"])


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("flag", [OURS, SAMPLED])
def test_a_flag_replaces_what_the_file_says_by_whichever_name(key: str, flag: str, tmp_path: Path) -> None:
    file = str(write(tmp_path, {key: 1024}))
    assert load_config(["@", file, f"--{flag}", "512"], environments=False).seq_len == 512


@pytest.mark.parametrize(
    ("in_file", "flag", "length"),
    [
        ({OURS: 4096}, {ENGINE: 8192}, 4096),  # what the engine could hold makes no episode shorter or longer
        ({OURS: 4096}, {ENGINE: 1024}, 1024),
        ({SAMPLED: 1024}, {TRAINED: 1024}, 1024),
        ({ENGINE: 1024}, {TRAINED: 4096}, 2048),
    ],
)
def test_a_flag_that_only_bounds_the_length_bounds_what_the_file_says(
    in_file: dict[str, int], flag: dict[str, int], length: int, tmp_path: Path
) -> None:
    file = str(write(tmp_path, in_file))
    assert load_config(["@", file, *flags(flag)], environments=False).seq_len == length


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", ['"long"', "8", "true", "-3", "20.5"])
def test_what_is_no_length_is_refused_at_its_line(key: str, value: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(f"max_steps = 3\n{key} = {value}\n")
    with pytest.raises(Refused, match=r"run\.toml:2.*seq_len"):
        load_config(["@", str(file)])


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), st.sampled_from(LENGTHS)))
def test_whatever_is_said_one_length_is_saved_and_read_back(said: dict[str, int]) -> None:
    """Or refused; never longer than anything that was said, unless it is what is trained."""
    try:
        config = load_config(flags(said))
    except Refused:
        assert len({*said.values()}) > 1 or said.keys() == {TRAINED}
        return
    assert config.seq_len <= min([value for key, value in said.items() if key != TRAINED] or [2048])
    text = to_toml(config)
    assert text.count(f"seq_len = {config.seq_len}") == 1 and "max_model_len" not in text
