"""Advice that the lab prints is accepted when it is followed: each of it is read as a person would, written into the
file that was refused, and the file is read again."""

from __future__ import annotations

import re
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest
from test_factors import GRID, grid, whole
from test_hypotheses import sweep, written

from airloop.errors import AirError
from airloop.shipped import shipped
from airloop_lab.hypotheses import read_hypothesis
from airloop_lab.hypothesis import as_lines
from airloop_lab.hypothesis_checks import check_alike, check_steps
from airloop_lab.hypothesis_file import flat, lists, shown

PLACE = re.compile(r"in \[(\w+)\](?: instead of \[([\w.]+)\])?: ")


def dotted(table: dict[str, Any], kind: str) -> dict[str, Any]:
    return lists(table) if kind in ("vary", "grid") else flat(table)


def followed(text: str, advice: str, kind: str) -> str:
    """One way of an advice, done: assignments at the top or in a table, or a block of lines."""
    tree = tomllib.loads(text)
    said, _, block = advice.partition("\n")
    if block:
        new = tomllib.loads(textwrap.dedent(block))
        tree = {**tree, **new}
    else:
        parts = PLACE.split(said)
        top = re.search(r"(?:^|: )(\w+ = .*?)(?:, and )?$", parts[0]) if " = " in parts[0] else None
        if top:
            tree |= assigned(top[1]) if "." not in top[1].split(" = ")[0] else {}
        elif " = " in parts[0]:
            tree[kind] = {**dotted(tree[kind], kind), **lists(assigned(parts[0]))}
        for table, other, what in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            new = dotted(assigned(what), table)
            if other:
                name, _, own = other.partition(".")
                place = tree[name][own] if own else tree[name]
                left = {key: value for key, value in dotted(place, name).items() if key not in new}
                tree[name] = {**tree[name], own: left} if own else left
            tree[table] = {**dotted(tree[table], table), **new}
    return written_out(tree)


def assigned(text: str) -> dict[str, Any]:
    return tomllib.loads(f"x = {{ {text.strip().rstrip('.,')} }}")["x"]


def written_out(tree: dict[str, Any]) -> str:
    plain = [f"{key} = {shown(value)}" for key, value in tree.items() if not isinstance(value, dict)]
    for name, table in tree.items():
        if isinstance(table, dict):
            inner = table.items() if name == "sets" else [("", table)]
            for own, values in inner:
                plain.append(f"[{name}{'.' if own else ''}{own}]")
                plain += [f"{key} = {shown(value)}" for key, value in dotted(values, name).items()]
    return "\n".join(plain) + "\n"


def refused(path: Path) -> AirError | None:
    try:
        check_alike(read_hypothesis(path))
    except AirError as error:
        return error
    return None


FEW = {"seeds": "seeds = [0, 1]"}
CASES: dict[str, tuple[str, dict[str, str]]] = {
    "too few seeds": ("max_steps = 3", FEW),
    "too few seeds for the budget, too": ("max_steps = 3", {**FEW, "steps": "steps = 10"}),
    "a seed twice": ("max_steps = 3", {"seeds": "seeds = [4, 4]"}),
    "a seed below zero": ("max_steps = 3", {"seeds": "seeds = [-1, 1, 2]"}),
    "steps for one seed": ("trainer.optim.lr = 1e-3", {"steps": "steps = 4"}),
    "steps for none": ("trainer.optim.lr = 1e-3", {"steps": "steps = 3"}),
    "steps for three of four": ("trainer.optim.lr = 1e-3", {"seeds": "seeds = [0, 1, 2, 3]", "steps": "steps = 14"}),
    "steps that are varied": ("max_steps = 30", {"steps": "steps = 20"}),
    "few tasks": (
        "max_steps = 3",
        {"orchestrator.eval.num_examples": "orchestrator.eval.num_examples = 2"},
    ),
    "two things": ("trainer.optim.lr = 1e-3\ntrainer.loss.scale_rewards = false", {}),
    **{
        f"the loss {loss}": (f'trainer.loss.type = "{loss}"', {})
        for loss in ("dr_grpo", "dapo", "gspo", "cispo", "rloo")
    },
    "several processes": ('fault = "sync"', {"deterministic": "trainer.processes = 2"}),
    "no margin": ("max_steps = 3", {"margin": "margin = 0"}),
}


@pytest.mark.parametrize("case", CASES)
def test_every_way_that_is_advised_leads_on(tmp_path: Path, case: str) -> None:
    change, replaced = CASES[case]
    try_all(written(tmp_path, change, **replaced), "change")


SWEEPS = {
    "no list": ("trainer.optim.lr = 1e-3", "vary"),
    "twice": ("trainer.optim.lr = [1e-3, 0.001]", "vary"),
    "many comparisons, few tasks": (f"trainer.optim.lr = {[i / 1000 for i in range(11, 30)]}", "vary"),
    "the base's own value": ("trainer.optim.lr = [1e-3, 2e-3]", "vary"),
    "a key of what is measured": ("trainer.optim.lr = [1e-3]\norchestrator.eval.temperature = [0.5]", "vary"),
    "what is measured": ("orchestrator.eval.num_examples = [20]", ""),
    "a grid with a list too short": (GRID.replace("[1e-3, 4e-3]", "[1e-3, 1e-3, 2e-3]"), "grid"),
}


@pytest.mark.parametrize("case", SWEEPS)
def test_every_way_that_is_advised_for_a_sweep_leads_on(tmp_path: Path, case: str) -> None:
    keys, kind = SWEEPS[case]
    if case == "what is measured":
        return try_all(whole(tmp_path, '["a"]', f"[sets.a]\nmax_steps = 3\n{keys.replace('[20]', '20')}\n"), "vary")
    path = grid(tmp_path, keys) if kind == "grid" else sweep(tmp_path, keys)
    path.write_text(path.read_text().replace("steps = 100", "steps = 1000"))
    return try_all(path, kind)


def test_one_seed_may_be_called_exploratory(tmp_path: Path) -> None:
    path = sweep(tmp_path, "trainer.optim.lr = [1e-3]")
    path.write_text(path.read_text().replace("seeds = [0, 1, 2]", "seeds = [5]"))
    try_all(path, "vary", ways=2)


def test_weights_of_rewards(tmp_path: Path) -> None:
    try_all(sweep(tmp_path, '"orchestrator.env.0.rewards" = [{ correct = 0.5 }]'), "vary")


@pytest.mark.parametrize("keys", ["", "orchestrator.sampling.max_tokens = 2\n"])
def test_a_whole_config_that_plays_otherwise(tmp_path: Path, keys: str) -> None:
    """By what its file says, or by what the set says itself."""
    other = tmp_path / "other.toml"
    made = shipped("arith").read_text().replace("max_tokens = 3", "max_tokens = 2")
    other.write_text(made.replace("[trainer.optim]", "[trainer.optim]\nmax_norm = 0.5"))
    text = f"[sets.a]\ntrainer.optim.max_norm = 0.5\n{keys}" + ('config = "other.toml"\n' if not keys else "")
    try_all(whole(tmp_path, '["a"]', text), "vary")


def test_a_metric_that_is_misspelled_is_known_before_the_runs(tmp_path: Path) -> None:
    path = sweep(tmp_path, "trainer.optim.lr = [1e-3]")
    path.write_text(path.read_text().replace("[rule]", '[rule]\nmetric = "sucess"'))
    try_all(path, "vary")
    path.write_text(path.read_text().replace('"success"', '"my_own_metric"'))
    assert refused(path) is None


def test_mistakes_in_keys_are_told_as_lines_of_the_file(tmp_path: Path) -> None:
    for change, right in (
        ("trainer.optim.lrr = 1e-3", "trainer.optim.lr = 0.001"),
        ("trainer.optim.betas = [0.9, 2.0]", "trainer.optim.betas = [0.9, 0.95]"),
        ('trainer.loss.type = "drgrpo"', 'trainer.loss.type = "dr_grpo"'),
    ):
        error = refused(written(tmp_path, change))
        assert error is not None and "--" not in str(error) and right in error.fix
    held = written(tmp_path, right, deterministic="trainer.loss.scale_rewards = true")
    assert refused(held) is None
    assert "two or more values" in str(refused(grid(tmp_path, GRID.replace("[1e-3, 4e-3]", "1e-3"))))
    assert "name another value" in str(refused(grid(tmp_path, GRID.replace("[1e-3, 4e-3]", "[1e-3, 1e-3]"))))
    assert (
        as_lines("write --max_steps 3, not air train --resume RUN") == "write max_steps = 3, not air train --resume RUN"
    )


def try_all(path: Path, kind: str, ways: int = 1) -> None:
    error = refused(path)
    assert error is not None and error.fix
    text = path.read_text()
    alternatives = [part.strip() for part in re.split(r"; or |\n  or ", error.fix)]
    alternatives = [re.sub(r", which ranks.*|, or what does.*|\.$", "", part) for part in alternatives]
    alternatives = [part for part in alternatives if " = " in part]
    assert len(alternatives) >= ways
    for advice in alternatives:
        if kind == "change" and advice.startswith("margin"):
            advice = f"in [rule]: {advice}"
        path.write_text(followed(text, advice, kind))
        again = refused(path)
        assert again is None, f"{advice}\n\n{again}\n\n{path.read_text()}"


def test_seeds_of_the_command_line_are_told_what_fits(tmp_path: Path) -> None:
    found = read_hypothesis(written(tmp_path, "trainer.optim.lr = 1e-3"))
    with pytest.raises(AirError) as error:
        check_steps(found, range(40))
    assert (
        "steps = 160" in error.value.fix and "max_steps = 1" in error.value.fix and "take 25 seeds" in error.value.fix
    )
