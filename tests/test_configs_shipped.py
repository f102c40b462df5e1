"""Every TOML that comes with air loads, its environments take their arguments, and it is written back the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fixture_checkout import write_checkout

from airloop.config import load_config
from airloop.environments import load_environments
from airloop.errors import AirError
from airloop.shipped import names

OF_A_CHECKOUT = "mlgym/qwen2.5-coder-0.5b-checkout"  # of MLGym, which is somebody else's


@pytest.mark.parametrize("name", sorted({*names()} - {OF_A_CHECKOUT}))
def test_a_shipped_config_loads_with_its_environments(name: str) -> None:
    config = load_config([name])
    envs = load_environments(config)
    for env in envs.values():
        try:
            assert {task.curve for task in env.tasks("train")}
        except AirError as error:  # the hub's rows are not in every test machine's cache, and say how they get there
            assert "is not on this machine" in error.problem and "hf download" in error.fix
        examples = config.orchestrator.batch_size // config.orchestrator.rollouts_per_example
        assert examples * config.orchestrator.rollouts_per_example == config.orchestrator.batch_size
        env.abandon()
    # Without a hub the text of a 4B model's tokenizer is not here: lengths are checked when a run starts.
    assert config.seq_len >= 1024 or name in ("arith", "quickstart")


def test_a_config_for_a_checkout_loads_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIR_MLGYM_ROOT", raising=False)
    with pytest.raises(AirError, match="needs an MLGym checkout"):
        load_environments(load_config([OF_A_CHECKOUT]))
    given = {"mlgym_root": write_checkout(tmp_path), "task_configs": '["prisonersDilemma.yaml"]'}
    flags = [word for key, value in given.items() for word in (f"--orchestrator.env.0.args.{key}", str(value))]
    (env,) = load_environments(load_config([OF_A_CHECKOUT, *flags])).values()
    assert {task.curve for task in env.tasks("train")} == {"prisonersDilemma"}
    env.abandon()
