"""Section D of the failures people met, in the research environment: one test per id, in the real sandbox."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.fixture_checkout import write_checkout
from support.playing import DEFECT, GAME, observed, play, with_env

from airloop.errors import AirError
from airloop_envs.mlgym.checkout import load_task
from airloop_envs.mlgym.env import MlgymEnv


@pytest.mark.slow
@pytest.mark.parametrize("turns", [3, pytest.param(20, marks=pytest.mark.soak)])
def test_D1_sixty_four_episodes_at_once_each_get_all_their_turns(turns: int) -> None:
    async def one(env: MlgymEnv, number: int) -> None:
        lines = [f"echo {number}.{turn} $N $(cat own)" for turn in range(turns - 1)]
        game = await play(env, [f"echo {number} > own; N={number}", *lines], env.tasks("train")[number % 10])
        said = observed(game)
        assert len(game.turns) == turns and game.ending == "max_turns"
        for turn in range(turns - 1):
            assert said[turn + 1].startswith(f"{number}.{turn} {number} {number}\n"), said[turn + 1]
            assert f"step {turn + 2}, {turns - turn - 2} left" in said[turn + 1]

    async def work(env: MlgymEnv) -> None:
        await asyncio.gather(*(one(env, number) for number in range(64)))

    # nothing is handed in here, so there are no 64 gradings to wait for
    with_env(work, task_configs=["titanic"], prompt="full", max_turns=turns, standby=0, memory_mb=256)


@pytest.mark.slow
def test_D2_python_is_not_read_as_shell() -> None:
    async def work(env: MlgymEnv) -> None:
        text = "def f(x):\n    return {'a': x if x else \"it's $fine (really\"}\n"
        game = await play(env, ["create f.py", f"edit 1:1\n{text}end_of_edit", "python -c 'import f; print(f.f(0))'"])
        assert observed(game)[2].startswith("{'a': \"it's $fine (really\"}")

    with_env(work)


@pytest.mark.slow
def test_D3_of_several_commands_the_first_runs_and_the_others_are_named() -> None:
    class Two:
        async def reply(self, messages: object, tools: object) -> dict[str, str]:
            return {"role": "assistant", "content": "```bash\necho first > a\n```\nthen\n```bash\necho second > a\n```"}

    async def work(env: MlgymEnv) -> None:
        from airloop.rollout.episode import run_episode

        game = await run_episode(env, env.tasks("train")[0], Two(), id="x", seed=0, max_turns=2)  # type: ignore[arg-type]
        shown = game.turns[1].shown[-1]["content"]
        assert "not run: `echo second > a`" in shown
        assert game.metrics["invalid_actions"] == 0

    with_env(work)


@pytest.mark.slow
def test_D4_the_commands_are_there_after_a_hundred_resets() -> None:
    async def work(env: MlgymEnv) -> None:
        from airloop_envs.mlgym.workspace import agent_image

        image = agent_image(env.spec(env.tasks("train")[0]), env.args.sandboxes())
        async with await env.places().pool.lease(image) as lease:
            for _ in range(100):
                await lease.run("unset -f validate submit open edit; rm -rf ~/* 2>/dev/null; exit", 5)
                await lease.restore()
                result = await lease.run("type -t validate submit open edit create; ls; pwd", 5)
                assert result.output == "function\n" * 5 + "strategy.py\n/home/agent/workspace\n"

    with_env(work, standby=2)


@pytest.mark.slow
def test_D5_a_task_without_a_baseline_is_measured_and_one_that_fails_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIR_CACHE", str(tmp_path / "cache"))
    root = write_checkout(tmp_path / "MLGym")
    unmeasured = [p.stem for p in (root / "configs" / "tasks").glob("*.yaml")]
    specs = [spec for name in unmeasured if (spec := load_task(root, name)).runnable]
    chosen = next(spec for spec in specs if spec.yardstick.baseline is None and spec.baseline_paths)

    async def works(env: MlgymEnv) -> None:
        game = await play(env, [f"python {chosen.baseline_paths[0]}", "submit"])
        assert game.metrics["score"] == pytest.approx(game.metrics["baseline"])

    args = {"task_configs": [chosen.key], "mlgym_root": str(root), "source": "checkout"}
    with_env(works, **args)
    script = next(path for path in chosen.starter_code if path.name == Path(chosen.baseline_paths[0]).name)
    script.write_text("raise SystemExit('no such data')\n")

    async def fails(env: MlgymEnv) -> None:
        with pytest.raises(AirError, match="no such data"):
            await play(env, ["ls"])

    with_env(fails, **args)


@pytest.mark.long
def test_D7_a_sandbox_that_fails_in_one_of_ten_episodes_is_no_reward_and_harms_no_other() -> None:
    async def work(env: MlgymEnv) -> None:
        tasks = [asyncio.create_task(play(env, [DEFECT, "sleep 3", "submit"])) for _ in range(10)]
        pool = env.places().pool
        until = time.monotonic() + 120
        # One that sleeps now: on a busy machine the first may be done before the last has begun. A shell's fifth
        # request is the sleep, after its own beginning, the agent's commands, the file, and a look at how that went.
        while not (asleep := [one.sandbox for one in pool.leases if one.sandbox.shell._count == 5]):  # type: ignore[attr-defined]
            assert time.monotonic() < until, "none of them has come to its second command"
            await asyncio.sleep(0.02)
        os.kill(asleep[0].first, signal.SIGKILL)  # type: ignore[attr-defined]
        games = await asyncio.gather(*tasks)
        spoilt = [game for game in games if game.ending == "infra_error"]
        assert len(spoilt) == 1 and not spoilt[0].rewards and "killed from outside" in spoilt[0].error
        assert all(game.metrics["improved"] == 1 for game in games if game.ending != "infra_error")

    with_env(work, standby=0)


@pytest.mark.slow
def test_D8_answers_graders_and_opponents_are_outside_the_agents_sandbox() -> None:
    async def work(env: MlgymEnv) -> None:
        for task in env.tasks("train"):
            look = "find / -name 'evaluate.py' -o -name 'target.py' -o -name 'answers*' 2>/dev/null"
            game = await play(env, [look], task)
            said = observed(game)[0]
            assert "workspace" not in said.split("[")[0], said

    with_env(work, task_configs=["titanic", GAME], num_examples_per_task=1, max_turns=1, command_timeout_s=60)


@pytest.mark.slow
def test_D9_a_hung_command_holds_nothing() -> None:
    async def work(env: MlgymEnv) -> None:
        begin = time.monotonic()
        game = await play(env, ["trap '' INT TERM; while :; do sleep 1000; done", DEFECT, "submit"])
        assert time.monotonic() - begin < 60
        assert game.metrics["improved"] == 1

    with_env(work, command_timeout_s=1)


# A process with an episode under way: a command left running in the background of its sandbox.
CRASHES = """
import asyncio
from support.playing import GAME
from airloop_envs.mlgym.env import MlgymEnv

async def main():
    env = MlgymEnv(MlgymEnv.Args(task_configs=[GAME], num_examples_per_task=1))
    async with env.open(env.tasks("train")[0], 0) as session:
        await session.begin()
        lease = next(iter(env.places().pool.leases))
        await lease.run("setsid sleep 300 & echo on", 5)
        print(lease.sandbox.namespace, env.places().pool.backend.runtime.path, flush=True)
        await asyncio.sleep(300)

asyncio.run(main())
"""


@pytest.mark.slow
def test_D10_what_a_crash_leaves_is_reaped() -> None:
    """Killed in the middle of an episode: its sandboxes end with it, the next start clears what is left of files."""
    from airloop.sandbox import processes
    from airloop.sandbox.bubblewrap import cgroups
    from airloop.sandbox.bubblewrap.backend import Bubblewrap

    folder = Path(__file__).parents[1]  # where `support` is
    with subprocess.Popen([sys.executable, "-c", CRASHES], cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        namespace, runtime = process.stdout.readline().split()
        lived = list(processes.of_namespace(int(namespace)))
        assert Path(runtime).exists()  # not later: any start of a sandbox beside this test may be the next one
        process.kill()
    assert len(lived) >= 3, "the sandbox's first process, its shell and the command"
    until = time.monotonic() + 20
    while (left := [p for p in lived if p in processes.of_namespace(int(namespace))]) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left
    Bubblewrap(warm_python=False).abandon()  # the next start
    assert not Path(runtime).exists()
    groups = cgroups.find()
    assert not [g for parent in {groups.memory, groups.pids} if parent for g in parent.glob(f"air-{process.pid}*")]


@pytest.mark.slow
def test_D14_parallel_episodes_of_one_task_share_nothing() -> None:
    async def work(env: MlgymEnv) -> None:
        kind = DEFECT.replace("return 1", "return 0")
        scripts = [[DEFECT, "sleep 0.5", "submit"], [kind, "sleep 0.5", "submit"]] * 2
        games = await asyncio.gather(*(play(env, script) for script in scripts))
        assert [game.metrics["improved"] for game in games] == [1, 0, 1, 0]

    with_env(work)


@pytest.mark.slow
def test_D15_a_score_belongs_to_an_artefact_of_this_attempt() -> None:
    make = "python -c \"import shutil; exec(open('baseline.py').read())\""

    async def work(env: MlgymEnv) -> None:
        untouched = await play(env, ["submit"])
        assert untouched.metrics["scored"] == 0 and untouched.metrics["submission_not_found"] == 1
        game = await play(env, [make, "validate", "python -c 'raise ValueError(1)'", "validate", "submit"])
        said = observed(game)
        assert "the same as in step 2" in said[3]  # the crashed training made nothing new
        copied = await play(env, ["cp data/sample_submission.csv submission.csv", "submit"])
        assert copied.metrics["scored"] == 0

    with_env(work, task_configs=["titanic"], max_turns=5)


def test_D16_labels_that_are_a_rule_are_reported_before_a_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = write_checkout(tmp_path / "MLGym")
    env = MlgymEnv(
        MlgymEnv.Args(task_configs=["titanic.yaml"], mlgym_root=str(root), source="checkout")  # type: ignore[call-arg]
    )
    env.tasks("train")
    assert "and so can the agent" in caplog.text
    assert "a rule of one feature" in caplog.text


@pytest.mark.slow
def test_D17_a_score_beyond_the_optimum_is_withheld(caplog: pytest.LogCaptureFixture) -> None:
    async def work(env: MlgymEnv) -> None:
        from dataclasses import replace

        task = env.tasks("train")[0]
        spec = env.spec(task)
        low = replace(spec, yardstick=replace(spec.yardstick, reference=2.5))  # as if less were the best there is
        env.library._specs[spec.key, spec.variant] = low
        game = await play(env, [DEFECT, "validate", "submit"])
        assert game.metrics["too_good"] == 1 and game.metrics["scored"] == 0 and game.rewards["headroom"] == -1
        assert "too good to be true" in caplog.text

    with_env(work)


@pytest.mark.slow
def test_D17_the_agents_code_never_runs_in_the_graders_process() -> None:
    cheat = """cat << 'EOF' > strategy.py
import random, sys
def row_strategy(history):
    random.seed(0)
    history.append((0, 0))
    assert not {"evaluate", "target", "matches"} & set(sys.modules)
    return 1
EOF"""

    async def work(env: MlgymEnv) -> None:
        honest, tricked = await play(env, [DEFECT, "submit"]), await play(env, [cheat, "submit"])
        assert tricked.metrics["score"] == pytest.approx(honest.metrics["score"], abs=0.03)

    with_env(work)


def test_D18_what_counts_and_in_which_direction_is_known_not_guessed(tmp_path: Path) -> None:
    root = write_checkout(tmp_path / "MLGym")
    specs = [load_task(root, path.stem) for path in sorted((root / "configs" / "tasks").glob("*.yaml"))]
    unknown = [spec for spec in specs if any("metric" in problem for problem in spec.problems)]
    assert unknown, "the fixture has a task whose metric nobody knows"
    with pytest.raises(AirError, match="metric"):
        MlgymEnv(
            MlgymEnv.Args(task_configs=[unknown[0].key], mlgym_root=str(root))  # type: ignore[call-arg]
        ).tasks("train")
    house = next(spec for spec in specs if "house" in spec.key.lower())
    assert (house.yardstick.metric.lower(), house.yardstick.direction) == ("r2", "up")


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["done", "max_turns", "context_full", "deadline"])
def test_D19_the_last_reward_is_given_however_an_episode_ends(ending: str) -> None:
    from airloop.engine.base import ContextFull

    class Cut:
        def __init__(self) -> None:
            self.said = 0

        async def reply(self, messages: object, tools: object) -> dict[str, str]:
            self.said += 1
            if self.said == 2 and ending == "context_full":
                raise ContextFull("no room")
            if self.said == 2 and ending == "deadline":
                await asyncio.sleep(60)
            line = DEFECT if self.said == 1 else ("submit" if ending == "done" else "true")
            return {"role": "assistant", "content": f"```bash\n{line}\n```"}

    async def work(env: MlgymEnv) -> None:
        from airloop.rollout.episode import run_episode

        if ending == "deadline":  # the first sandbox and the first grading take seconds, which are not the episode's
            await play(env, ["ls"])
        deadline = 8.0 if ending == "deadline" else 120.0
        game = await run_episode(
            env, env.tasks("train")[0], Cut(), id="x", seed=0, max_turns=3, deadline_s=deadline  # type: ignore[arg-type]
        )  # fmt: skip
        assert game.ending == ending
        assert game.rewards["headroom"] > 0.5 and game.metrics["improved"] == 1

    with_env(work)
