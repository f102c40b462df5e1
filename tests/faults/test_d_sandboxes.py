"""D20 and D21: what agents need is looked for where they run, and no component pays for doing nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
import venv
from pathlib import Path
from typing import Any

import pytest
from support.examined import TINY, findings, silent, trouble
from support.fixture_checkout import write_checkout
from support.playing import DEFECT, play, with_env
from support.probe_cases import ARITH, ask, case_of

from airloop.envs.arith import ArithSession
from airloop.eval.audit import audit
from airloop.eval.tasks import format_environments, list_environments
from airloop.sandbox.needs import missing_in_sandbox
from airloop.types import Action, Observation
from airloop.watch.display.display import Display
from airloop_envs.mlgym.catalogue import catalogue, format_catalogue
from airloop_envs.mlgym.env import MlgymEnv

needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


def of(env: str, rewards: str = "", **args: Any) -> list[str]:
    chosen = ["--orchestrator.env.0.id", env, "--orchestrator.env.0.args", json.dumps(args)]
    return [*TINY, *chosen, *(["--orchestrator.env.0.rewards", rewards] if rewards else [])]


@needs_bwrap
def test_D20_a_module_that_the_agents_python_lacks_is_named_before_any_episode(tmp_path: Path) -> None:
    """BeautifulSoup, in an interpreter that has nothing installed."""
    venv.create(tmp_path / "bare", with_pip=False)
    python = str(tmp_path / "bare" / "bin" / "python")
    ids, finding = trouble(of("soup", python=python), "D20")
    assert ids == ("D20",) and finding.verdict == "fail"
    assert "soup needs bs4, lxml and html5lib inside the agents' sandbox" in finding.seen
    assert "No module named 'bs4'" in finding.seen and "the reward would be blamed" in finding.why
    assert finding.fix == f"{python} -m pip install beautifulsoup4 lxml html5lib"
    assert silent(of("soup"), "D20")


@needs_bwrap
def test_D20_what_a_research_task_imports_is_looked_for_in_its_sandbox(tmp_path: Path) -> None:
    root = write_checkout(tmp_path)
    args = {"task_configs": ["regressionKaggleHousePrice"], "mlgym_root": str(root), "source": "checkout"}
    assert silent(of("mlgym", '{"improvement": 1.0}', **args), "D20"), "numpy is there"
    script = root / "data/houses/baseline.py"
    script.write_text("import no_such_framework.nn\ntry:\n    import nor_this\nexcept ImportError:\n    pass\n")
    ids, finding = trouble(of("mlgym", '{"improvement": 1.0}', **args), "D20")
    assert ids == ("D20",) and "'regressionKaggleHousePrice' needs no_such_framework inside" in finding.seen
    assert "nor_this" not in finding.seen and finding.fix.endswith("-m pip install no-such-framework")
    rows = catalogue(str(root))
    text = format_catalogue(rows)
    line = next(line for line in text.splitlines() if line.startswith("regressionKaggleHousePrice"))
    assert "checkout" in line and "1 thing missing" in line and "ready" not in line
    assert "! the Python module no_such_framework is not installed: regressionKaggleHousePrice" in text


@needs_bwrap
def test_D20_a_gpu_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    args = {"task_configs": ["prisonersDilemma"], "source": "builtin"}
    ids, finding = trouble(of("mlgym", env_gpu="77", **args), "D20")
    assert ids == ("D20",) and finding.verdict == "fail" and "the GPU 77" in finding.seen
    assert "the GPUs here are" in finding.seen or "this machine has none" in finding.seen
    assert "env_gpu" in finding.fix
    assert silent(of("mlgym", **args), "D20")


def test_D20_tasks_are_not_ready_without_their_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    rows = list_environments(["mlgym", "soup"], with_tasks=True)
    text = format_environments(rows, with_args=False)
    assert text.count("not ready: The bubblewrap sandbox needs the program `bwrap`, which is not installed.") == 2
    assert "apt-get install bubblewrap" in text and "  ready" not in text
    # Without it nothing can be looked at inside, and that is said once, by the check of the sandbox itself.
    found = [(ids, f) for ids, f in findings(of("soup"), "D-sandbox,D20") if f.verdict != "pass"]
    assert [ids for ids, _ in found] == [("D-sandbox",)]


@pytest.fixture
def broken_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(self: ArithSession, action: Action) -> Observation:
        trace = 'Traceback (most recent call last):\n  File "<code>", line 1\n'
        return Observation(f"{trace}ModuleNotFoundError: No module named 'bs4'", done=True, failed=True)

    monkeypatch.setattr(ArithSession, "act", act)


def test_D20_what_all_episodes_met_is_said_before_the_rewards_are_blamed(broken_tools: None) -> None:
    with case_of(ARITH) as case:
        (finding,) = ask(case, "rewards_differ")
    assert finding.verdict == "fail" and finding.ids == ("D20", "E1")
    assert "“ModuleNotFoundError: No module named 'bs4'” is in the tool results of 48 of 48 episodes" in finding.seen
    assert "the environment is broken, not the reward" in finding.why and "install beautifulsoup4" in finding.fix


@pytest.mark.parametrize(("word", "broken"), [("ls", True), ("Sure,", False), ("I", False)])
def test_D20_a_model_that_speaks_to_the_shell_is_no_broken_sandbox(
    word: str, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(self: ArithSession, action: Action) -> Observation:
        return Observation(f"bash: line 1: {word}: command not found", done=True, failed=True)

    monkeypatch.setattr(ArithSession, "act", act)
    with case_of(ARITH) as case:
        (finding,) = ask(case, "rewards_differ")
    assert finding.verdict == "fail" and ("D20" in (finding.ids or ())) is broken


def test_D21_a_reward_of_shaping_alone_is_refused() -> None:
    ids, finding = trouble(of("tune", '{"tool": 1.0}'), "D21")
    assert ids == ("D21",) and finding.verdict == "fail" and "is tool, and nothing else" in finding.seen
    assert "improvement, headroom" in finding.fix and "air tasks audit tune" in finding.fix
    assert silent(of("tune", '{"tool": 1.0, "headroom": 1.0}'), "D21") and silent(of("tune"), "D21")


@pytest.mark.slow
@needs_bwrap
def test_D21_tidy_starter_code_is_nobodys_quality() -> None:
    """The no-op had 1.0 for it, the oracle 0.83."""

    async def work(env: MlgymEnv) -> None:
        env.weigh({"headroom": 1.0, "code_quality": 1.0})
        idle = await play(env, ["ls", "submit"])
        assert idle.rewards["code_quality"] == 0
        assert (await play(env, [DEFECT, "submit"])).rewards["code_quality"] == 1

    with_env(work)


@pytest.mark.long
@needs_bwrap
def test_D21_the_audit_holds_honest_research_above_every_other() -> None:
    env = MlgymEnv(MlgymEnv.Args(task_configs=["prisonersDilemma"], source="builtin", max_turns=7))  # type: ignore[call-arg]
    found = audit(env, 1, None, Display(quiet=True))
    assert [c for c in found.comparisons if c.verdict != "holds"] == [] and found.exit_code == 0
    assert {c.weighting for c in found.comparisons} >= {"default", "code_quality", "tier", "delta", "percentile"}


def test_a_bwrap_that_starts_late_ends_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*args: Any, timeout: float, **more: Any) -> Any:
        raise subprocess.TimeoutExpired("bwrap", timeout)

    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(subprocess, "run", late)
    (missing,) = missing_in_sandbox("bubblewrap")
    assert "could not be tried: bubblewrap did not start a sandbox within" in missing.what and "D20" in missing.fix
