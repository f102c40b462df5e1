"""Properties: the resolved TOML, line numbers, and that any input is loaded or explained."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airloop.config import ALIASES, Config, describe_keys, load_config, to_toml
from airloop.config.foreign_prime import PRIME
from airloop.config.foreign_verl import VERL
from airloop.config.lines import key_lines
from airloop.config.toml import toml_key, toml_value
from airloop.errors import AirError
from airloop.own_code import is_file_id


def test_key_lines():
    text = '''# comment with [brackets] = 1
top = "a # b"            # 2
"quoted key" = """
[not.a.table]
x = 1 \\""" """
lit = \'\'\'it's
\'\'\'
[a.b]
c.d = { e = 1, f = [ { g = 2 }, { g = 3 } ] }
arr = [
  1, # one
  "]",
]
[[a.list]]
id = 1
[a.list.sub]
k = 2979-05-27 07:32:00
[[a.list]]
id = 2
'''
    lines = key_lines(text)
    expected: dict[tuple[str | int, ...], int] = {
        ("top",): 2,
        ("quoted key",): 3,
        ("lit",): 6,
        ("a",): 8,
        ("a", "b"): 8,
        ("a", "b", "c"): 9,
        ("a", "b", "c", "d", "f", 1, "g"): 9,
        ("a", "b", "arr", 1): 12,
        ("a", "list"): 14,
        ("a", "list", 0, "id"): 15,
        ("a", "list", 0, "sub", "k"): 17,
        ("a", "list", 1): 18,
        ("a", "list", 1, "id"): 19,
    }
    assert {key: lines[key] for key in expected} == expected
    assert ("not", "a", "table") not in lines and ("x",) not in lines
    assert key_lines(text.replace("\n", "\r\n")) == lines


TOML = st.recursive(
    st.one_of(
        st.text(max_size=12), st.booleans(), st.integers(), st.floats(allow_nan=False),
        st.datetimes(), st.dates(), st.times(),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
# No file: its path would be made absolute, see test_config_paths.
TEXT = st.text(min_size=1, max_size=12).filter(lambda text: not text.startswith((".", "~")) and not is_file_id(text))
POSITIVE = st.floats(min_value=1e-12, max_value=1e6)


@st.composite
def configs(draw: st.DrawFn) -> Config:
    def maybe(**keys: st.SearchStrategy[Any]) -> dict[str, Any]:
        return draw(st.fixed_dictionaries({}, optional=keys))

    group, length = draw(st.integers(2, 16)), draw(st.integers(256, 1 << 20))
    env = st.fixed_dictionaries(
        {"id": TEXT},
        optional={
            "name": TEXT,
            "args": st.dictionaries(st.text(max_size=8), TOML, max_size=4),
            "rewards": st.dictionaries(TEXT, st.floats(-1e9, 1e9), max_size=3),
        },
    )
    orchestrator = maybe(env=st.lists(env, min_size=1, max_size=3), workers_per_env=st.integers(1, 9))
    orchestrator |= {
        "batch_size": group * draw(st.integers(1, 9)),
        "rollouts_per_example": group,
    }
    tree = maybe(
        seed=st.integers(0, 1 << 64),
        deterministic=st.booleans(),
        output_dir=st.text(min_size=1),
        seq_len=st.just(length),
        trainer_gpu_ids=st.lists(st.integers(0, 9), min_size=1, max_size=1),
        model=st.fixed_dictionaries({"name": TEXT}, optional={"device": st.sampled_from(["cpu", "auto"])}),
        wandb=st.fixed_dictionaries({}, optional={"project": TEXT, "name": st.text(), "offline": st.booleans()}),
        warmstart=st.fixed_dictionaries({}, optional={"min_reward": st.floats(-1e300, 1e300)}),
    )
    trainer = {"optim": maybe(lr=POSITIVE, max_norm=POSITIVE, betas=st.just([0.5, 0.75]))}
    trainer["model"] = maybe(ac=st.just({}), lora=st.just({"target_modules": ["a", 'b"']}))
    return Config.model_validate(tree | {"orchestrator": orchestrator, "trainer": trainer})


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(config=configs())
def test_the_resolved_toml_loads_back_to_the_same_config(config: Config, tmp_path_factory: pytest.TempPathFactory):
    file = tmp_path_factory.getbasetemp() / "resolved.toml"
    file.write_text(to_toml(config), encoding="utf-8", newline="")
    assert load_config(["@", str(file)], environments=False) == config


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(tree=st.dictionaries(st.text(max_size=8), TOML, max_size=4))
def test_values_are_written_as_valid_toml_and_found_on_their_line(tree: dict[str, Any]):
    text = f"\nvalue = {toml_value(tree)}\n"
    assert tomllib.loads(text)["value"] == tree
    lines = key_lines(text)
    assert all(lines[("value", key)] == 2 for key in tree)


KEYS = [key.name.split(".") for key in describe_keys()]
FOREIGN = [[part for part in name.split(".") if part not in ("*", "**")] for name in (*PRIME, *VERL)]
OTHERS = {part for path in FOREIGN for part in path} | {"source", "taskset", "ratio", *ALIASES}
NAMES = sorted({part for path in KEYS for part in path if part != "0"} | {"rank_", "lora_name"} | OTHERS)
PATHS = st.one_of(
    st.sampled_from(KEYS),
    st.sampled_from(FOREIGN),
    st.builds(lambda path, last: [*path[:-1], last], st.sampled_from(KEYS), st.sampled_from(NAMES)),
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=3),
)


def nested(pairs: list[tuple[list[str], Any]]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in pairs:
        node = tree
        for part in path[:-1]:
            child = node.get(part)
            child = node[part] = child if isinstance(child, dict) else {}
            node = child
        node[path[-1]] = value
    return tree


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    tree=st.lists(st.tuples(PATHS, TOML), max_size=5).map(nested),
    flags=st.lists(st.tuples(PATHS, st.text(max_size=8)), max_size=3),
)
def test_any_valid_toml_is_loaded_or_explained(
    tree: dict[str, Any], flags: list[Any], tmp_path_factory: pytest.TempPathFactory
):
    file: Path = tmp_path_factory.getbasetemp() / "any.toml"
    text = "\n".join(f"{toml_key(key)} = {toml_value(value)}" for key, value in tree.items())
    file.write_text(text, encoding="utf-8", newline="")
    try:
        load_config(["@", str(file), *(f"--{'.'.join(path)}={value}" for path, value in flags)])
    except AirError as error:
        assert "fix:" in str(error)
