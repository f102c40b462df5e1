"""Episodes in the real sandbox, through the real parser of replies."""

from __future__ import annotations

import ast
import asyncio
import shutil
from collections.abc import Sequence
from typing import Any

import pytest
from support.soup_samples import SAMPLES, SampleEnv, reply, sample_env

from airloop.chat.actions import parse
from airloop.rollout.episode import run_episode
from airloop.types import Action, Message, Trajectory
from airloop_envs.soup.agents import THEFTS
from airloop_envs.soup.sandbox_pool import LOST
from airloop_envs.soup.session import SoupSession

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")


class Says:
    def __init__(self, *replies: Message) -> None:
        self.replies = list(replies)

    async def reply(self, messages: Sequence[Message], tools: Sequence[Any]) -> Message:
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


async def play(env: SampleEnv, kind: str, agent: Any) -> Trajectory:
    trajectory = await run_episode(env, env.named(kind), agent, id=kind, seed=0)
    assert trajectory.ending != "infra_error", trajectory.error
    return trajectory


def tool(session: SoupSession, code: str) -> Any:
    return session.act(Action("tool", name="run_python", arguments={"code": code}))


async def outputs(kind: str, *codes: str, **args: Any) -> list[str]:
    env = sample_env(**args)
    try:
        async with env.open(env.named(kind), 0) as session:
            return [(await tool(session, code)).text for code in codes]
    finally:
        await env.close()


@pytest.mark.slow
def test_every_sample_is_solved_by_its_recipe_through_the_tools() -> None:
    async def all_of_them() -> list[Trajectory]:
        env = sample_env()
        try:
            return [await play(env, kind, env.scripted("oracle", env.named(kind), 0)) for kind in SAMPLES]
        finally:
            await env.close()

    for trajectory in asyncio.run(all_of_them()):
        assert trajectory.rewards["answer"] == (0.5 if trajectory.task.id == "sales" else 1.0), trajectory.task.id
        assert trajectory.metrics["passed"] == 1
        assert trajectory.ending == "done"


def fence(language: str, *bodies: str) -> str:
    return "\n\n".join(f"```{language}\n{body}\n```" for body in bodies)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        (f"I look.\n{fence('python', 'print(1)')}", Action("tool", name="run_python", arguments={"code": "print(1)"})),
        (
            fence("json", '{"status": "ok", "answer": [1]}'),
            Action("tool", name="answer", arguments={"status": "ok", "answer": [1]}),
        ),
        (fence("python", "print(1)", "print(2)"), None),  # which of them?
        ("```python\nprint(1)", None),  # does it end here?
        (fence("json", '{"tool": "find_all", "tag": "a"}'), None),
        (fence("html", "<a>"), None),
        ("I would call answer now.", None),
    ],
)
def test_a_single_block_is_a_call_in_all_but_its_form(text: str, meant: Action | None) -> None:
    async def read() -> list[Action]:
        env = sample_env()
        try:
            return parse(text, "tools", plain=env.open(env.named(next(iter(SAMPLES))), 0).plain_reply)[0]
        finally:
            await env.close()

    actions = asyncio.run(read())
    assert actions == [meant] if meant else [action.kind for action in actions] == ["invalid"]


def test_the_page_is_never_shown_and_the_words_are() -> None:
    async def openings() -> dict[str, tuple[str, list[str]]]:
        env = sample_env()
        found = {}
        for kind in SAMPLES:
            opening = await env.open(env.named(kind), 0).begin()
            text = "\n".join(m["content"] for m in opening.messages)
            found[kind] = text, [t["function"]["name"] for t in opening.tools]
        await env.close()
        return found

    shown = asyncio.run(openings())
    for kind, (text, tools) in shown.items():
        assert SAMPLES[kind].query in text and SAMPLES[kind].schema_text in text
        assert all(page not in text for page in SAMPLES[kind].pages.values())
        assert tools == (["run_python", "navigate", "answer"] if kind == "detail" else ["run_python", "answer"])


@pytest.mark.slow
def test_what_code_has_and_what_it_has_not() -> None:
    said = asyncio.run(
        outputs(
            "rating",
            "print(HTML, QUERY, CONSTRAINTS)",
            "print([len(make_soup(parser=p).find_all('p')) for p in ('html.parser', 'lxml', 'html5lib')])",
            "print(make_soup('<i>x</i>').i.text); left = 1",
            "print(left)",
            "def f():\n    return [g() for g in (1,)]\n\nf()",
            "x = 1",
            "import os; os.write(1, b'raw'); os._exit(3)",
            "open('kept.txt', 'w').write('x' * 9000)",
            "import socket; socket.create_connection(('1.1.1.1', 80), 1)",
            "import numpy",
            "print(input())",
            "raise SystemExit('bye')",
        )
    )
    assert said[0].startswith('<p id="r">4.8</p> What does the page say about rating?')
    assert said[1] == "[1, 1, 1]"
    assert said[2] == "x"
    assert "NameError" in said[3]  # a fresh process
    assert 'File "<code>", line 2' in said[4] and "return [g() for g in (1,)]" in said[4] and "inside" not in said[4]
    assert said[5] == "[no output: print what you want to see]"
    assert said[6] == "raw"
    assert "PermissionError" in said[7]
    assert "unreachable" in said[8] or "OSError" in said[8]
    assert "ModuleNotFoundError" in said[9]
    assert "EOFError" in said[10]
    assert said[11] == "bye"


@pytest.mark.long
def test_time_and_output_are_bounded() -> None:
    said = asyncio.run(
        outputs(
            "rating",
            "print('begun', flush=True)\nwhile True: pass",
            "print('a' * 5_000_000 + 'end')",
            "import threading as t, time\nt.Thread(target=time.sleep, args=(9,), daemon=True).start()\nprint('parent')",
            "x = 'a' * 3_000_000_000",
            timeout_s=2.0,
            max_output_chars=200,
            memory_mb=256,
        )
    )
    assert said[0] == "begun\n[stopped after 2 s]"
    assert len(said[1]) < 300 and said[1].endswith("end")
    assert said[2] == "parent"
    assert "MemoryError" in said[3] or "exit code" in said[3]


@pytest.mark.slow
def test_a_page_is_left_at_once_and_links_are_followed_as_a_browser_would() -> None:
    async def walk() -> list[str]:
        env = sample_env()
        said = []
        async with env.open(env.named("detail"), 0) as session:
            for href in ("/item/2", "3", "/item/2#top", "/nowhere", "/", "https://elsewhere.example/"):
                seen = await session.act(Action("tool", name="navigate", arguments={"href": href}))
                said.append(seen.text[:3] + "|" + (await tool(session, "print(make_soup().get_text())")).text)
        await env.close()
        return said

    brass, tin, first = "made of brass", "made of tin", "the red one"
    assert asyncio.run(walk()) == [
        *(f"You|{brass}", f"You|{tin}", f"You|{brass}", f"404|{brass}", f"You|{first}", f"404|{first}")
    ]


@pytest.mark.slow
def test_wrong_calls_are_answered_with_the_right_form_and_do_not_count() -> None:
    agent = Says(
        Message(role="assistant", content='{"status": "ok", "answer": "4.8"}'),
        reply(("run_python", {"source": "print(1)"})),
        reply(("navigate", {"href": "/"})),
        reply(("run_python", {"code": 7})),
        reply(("answer", {"answer": "4.8"})),
        reply(("answer", {"status": "ok"})),
        reply(("answer", {"status": "limit", "answer": None, "limit": "canvas"})),
        reply(("run_python", {"code": "print(make_soup().p.text)"})),
        reply(("answer", {"status": "ok", "answer": "4.8"})),
    )

    async def once() -> Trajectory:
        env = sample_env()
        try:
            return await play(env, "rating", agent)
        finally:
            await env.close()

    trajectory = asyncio.run(once())
    texts = [turn.observations[0].text for turn in trajectory.turns]
    assert "call answer" in texts[0]
    assert '{"code": "…"}' in texts[1] and texts[1] == texts[3]
    assert "no tool 'navigate'" in texts[2]
    assert '"status" must be' in texts[4] and 'needs "answer"' in texts[5] and '"evidence"' in texts[6]
    assert trajectory.reward == 1.0 and trajectory.metrics["calls"] == 1


@pytest.mark.slow
def test_whoever_breaks_its_own_sandbox_is_told_and_goes_on() -> None:
    said = asyncio.run(
        outputs(
            "rating",
            "import os, signal\nfor p in os.listdir('/proc'):\n"
            "    if p.isdigit() and int(p) != os.getpid():\n        os.kill(int(p), signal.SIGKILL)",
            "print(make_soup().p.text)",
            "import os\nwhile True: os.fork()",
            "print(make_soup().p.text)",
            timeout_s=3.0,
        )
    )
    assert said[1] == said[3] == "4.8", said
    assert LOST not in said[1::2]


@pytest.mark.slow
def test_a_thief_finds_neither_the_generator_nor_the_answer() -> None:
    """The page's own text is what the agent may have; nothing else of the task is in its process."""
    said = asyncio.run(outputs("sales", *THEFTS))
    importing, modules, files, objects, frames, others, network = said
    assert "ModuleNotFoundError: No module named 'airloop_envs'" in importing
    assert modules == files == others == "[no output: print what you want to see]"
    assert "recipe" not in objects and "forbidden" not in objects
    for line in frames.splitlines():
        names = set(ast.literal_eval(line.split(" ", 1)[1]))
        assert not {"task", "recipe", "limit", "pages", "forbidden", "schema"} & names
    assert "out" not in network.splitlines()


@pytest.mark.slow
def test_a_thief_earns_nothing() -> None:
    async def all_of_them() -> list[Trajectory]:
        env = sample_env()
        try:
            return [await play(env, kind, env.scripted("cheat", env.named(kind), 0)) for kind in ("rating", "login")]
        finally:
            await env.close()

    assert [t.reward for t in asyncio.run(all_of_them())] == [0.0, 0.0]
