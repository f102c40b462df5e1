"""One episode: a task's words, calls of the tools, one answer."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any
from urllib.parse import urldefrag, urljoin

from airloop.envs.base import Opening, Session
from airloop.sandbox.base import Result
from airloop.text.fences import fenced_blocks
from airloop.types import Action, Message, Observation, Score
from airloop_envs.soup.args import SoupArgs
from airloop_envs.soup.grading import Attempt, grade
from airloop_envs.soup.sandbox_pool import SandboxPool
from airloop_envs.soup.spec import START, SoupTask
from airloop_envs.soup.tools import STOPPED, TEACH, opening_texts, read_answer, tool_schemas

LONGEST_CODE = 20_000
PYTHON = ("python", "python3", "py")
OUTCOMES = ("correct", "limit", "partial", "violation", "schema_error")


class SoupSession(Session):
    def __init__(self, task: SoupTask, args: SoupArgs, sandbox_pool: SandboxPool) -> None:
        self.task = task
        self.args = args
        self.sandbox_pool = sandbox_pool
        self.attempt = Attempt(visited=[START])
        self.href = START

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.sandbox_pool.leave(self)

    async def begin(self) -> Opening:
        short = self.args.prompt == "short"
        system, user = opening_texts(self.task, short)
        messages = (Message(role="system", content=system), Message(role="user", content=user))
        return Opening(messages, tool_schemas(self.task, short))

    async def act(self, action: Action) -> Observation:
        match action.name:
            case "run_python":
                return await self._run_python(action.arguments)
            case "navigate" if self.task.multi_page:
                return self._navigate(action.arguments)
            case "answer":
                return self._answer(action.arguments)
        known = ", ".join(str(tool["function"]["name"]) for tool in tool_schemas(self.task, True))
        return Observation(f"There is no tool {action.name[:60]!r}; there are {known}.", failed=True)

    def plain_reply(self, text: str) -> Action | None:
        """Models that were taught to write code write it in a fence: a single block of Python is a call of run_python,
        a single one of JSON that `answer` would take is an answer. Two blocks could mean either of them."""
        blocks = [block for block in fenced_blocks(text) if block.body.strip()]
        if len(blocks) != 1 or not blocks[0].closed:
            return None
        (block,) = blocks
        if block.language in PYTHON:
            return Action("tool", name="run_python", arguments={"code": block.body})
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(block.body) if block.language == "json" else None
            if isinstance(value, dict) and not isinstance(read_answer(value), str):
                return Action("tool", name="answer", arguments=value)
        return None

    def invalid(self, action: Action) -> Observation:
        return Observation(f"{action.text} {TEACH}", failed=True)

    async def _run_python(self, arguments: Mapping[str, Any]) -> Observation:
        code = arguments.get("code")
        if not isinstance(code, str) or set(arguments) != {"code"}:
            return Observation('Nothing ran: run_python takes {"code": "…"}, and nothing else.', failed=True)
        if len(code) > LONGEST_CODE:
            return Observation(f"Nothing ran: code may have {LONGEST_CODE} characters.", failed=True)
        code = code.encode("utf-8", "replace").decode()  # half characters cannot be written
        page = self.task.pages[self.href]
        result = await self.sandbox_pool.run(self, self.task, page, code, self.args.timeout_s)
        failed = result.exit_code != 0
        self.attempt.codes.append((code, failed))
        return Observation(self._readable(result), failed=failed)

    def _readable(self, result: Result) -> str:
        text = cut_middle(result.output.strip("\n"), self.args.max_output_chars)
        notes = []
        if result.timed_out:
            notes.append(f"{STOPPED} {self.args.timeout_s:g} s]")
        elif result.exit_code != 0 and not text:
            notes.append(f"[no output, exit code {result.exit_code}]")
        elif not text:
            notes.append("[no output: print what you want to see]")
        return "\n".join([*([text] if text else []), *notes])

    def _navigate(self, arguments: Mapping[str, Any]) -> Observation:
        """The page is changed here and now: the next call, in this reply or a later one, has it (D12)."""
        href = arguments.get("href")
        if not isinstance(href, str) or set(arguments) != {"href"}:
            return Observation('Nothing was opened: navigate takes {"href": "…"}, and nothing else.', failed=True)
        self.attempt.navigations += 1
        target = self._resolve(href.strip())
        if target is None:
            return Observation(f"404: there is no page {href[:200]!r}. You are still on {self.href}.", failed=True)
        self.href = target
        self.attempt.visited.append(target)
        return Observation(f"You are on {target}: {len(self.task.pages[target])} characters of HTML.")

    def _resolve(self, href: str) -> str | None:
        """As a browser would, from the page that is open; a link written in the form of the site's own list wins."""
        if href in self.task.pages:
            return href
        try:
            target = urldefrag(urljoin(self.href, href)).url
        except ValueError:
            return None
        return target if target in self.task.pages else None

    def _answer(self, arguments: Mapping[str, Any]) -> Observation:
        given = read_answer(arguments)
        if isinstance(given, str):
            return Observation(given, failed=True)
        self.attempt.answer = given
        return Observation("The answer was taken.", done=True)

    async def finish(self) -> Score:
        attempt = self.attempt
        made = grade(self.task, attempt, self.args.credits_process)
        outcome = made.verdict.outcome
        metrics = {
            "passed": float(made.passed),
            **{name: float(outcome == name) for name in OUTCOMES},
            "answered": float(attempt.answer is not None),
            "calls": attempt.calls,
            "failed_calls": float(sum(failed for _, failed in attempt.codes)),
            "used_soup": float(attempt.facts.built),
        }
        return Score(made.rewards, metrics)


def cut_middle(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"
