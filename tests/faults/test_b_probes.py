"""B of FAILURES.md as far as it takes a template or a few replies to see it: B4, B6, B7, B9, B10."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.probe_cases import ARITH, TUNE, ask, case_of, chance, graded, ids_of

from airloop.assemble import rollout_settings
from airloop.chat import forest
from airloop.doctor.case import Case
from airloop.doctor.probe import Probe
from airloop.doctor.proof_tools import update
from airloop.envs.base import Opening
from airloop.envs.script import Script
from airloop.envs.tune.env import TuneEnv, TuneSession
from airloop.learn.batches import Row
from airloop.models.chat import ChatTokenizer
from airloop.models.chat_forms import CHATML
from airloop.rollout.collected import AgentFactory
from airloop.rollout.sampler import Sampler
from airloop.rollout.schedule import TaskSchedule
from airloop.types import Group


def probe_by(case: Case, agent: AgentFactory | None = None) -> None:
    """The case's probe, but with episodes that another agent played, in the real environment."""
    parts = case.parts
    settings = rollout_settings(case.config)
    sampler = Sampler(parts.engine, parts.loaded.tokenizer, parts.envs, settings, lambda *_: None)
    plan = TaskSchedule(parts.envs, "train", 0).batch(0, 2)
    played = case.wait(
        sampler.evaluate(plan, agent or (lambda env, task, seed: env.scripted("demo", task, seed)), rollouts=4)
    )
    groups = [Group(task, 0, tuple(t for t in played.trajectories if t.task == task)) for task in plan]
    case.__dict__["probe"] = Probe(parts, tuple(groups), (), 1.0, 8, 600.0)


# --- B4 -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_B4_a_model_that_never_acts_is_refused() -> None:
    with case_of(TUNE) as case:
        (finding,) = ask(case, "valid_actions")
    assert finding.verdict == "fail" and ids_of("valid_actions", finding) == ("B4",)
    assert finding.seen == "0 of 192 replies hold an action that can be read (0%)"
    assert "below 2%" in finding.why and "supervised start" in finding.fix and "--skip-proofs" in finding.fix
    assert finding.lines == {"warmstart.steps": 30, "warmstart.episodes": 256}
    assert finding.detail  # what it said instead


@pytest.mark.slow
def test_B4_is_silent_where_replies_hold_actions() -> None:
    with case_of(TUNE) as case:
        probe_by(case)
        (finding,) = ask(case, "valid_actions")
    assert finding.verdict == "pass" and "(100%)" in finding.seen


def test_B4_is_silent_where_any_reply_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    graded(monkeypatch, lambda text: {"correct": chance(text)})
    with case_of(ARITH) as case:
        assert ask(case, "valid_actions")[0].seen == "the environment takes any reply as it is"


@pytest.mark.slow
def test_B4_a_parser_for_another_form_of_calls_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TuneEnv, "action_format", "tools")
    call = '{"name": "run", "arguments": {"command": "validate"}}'
    with case_of(TUNE, inference__model__tool_call_parser="hermes") as case:
        probe_by(case, lambda env, task, seed: Script(call))
        (finding,) = ask(case, "valid_actions")
    assert finding.verdict == "fail" and finding.lines == {"inference.model.tool_call_parser": "auto"}
    with case_of(TUNE, inference__model__tool_call_parser="auto") as case:
        probe_by(case, lambda env, task, seed: Script(call))
        assert ask(case, "valid_actions")[0].verdict == "pass"


SCHEMA = {"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}


def with_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tune` has a tool from now on, which its agents are shown."""
    begin = TuneSession.begin

    async def shown(session: TuneSession) -> Opening:
        return replace(await begin(session), tools=(SCHEMA,))

    monkeypatch.setattr(TuneEnv, "action_format", "tools")
    monkeypatch.setattr(TuneSession, "begin", shown)


@pytest.mark.slow
def test_B10_calls_in_a_fence_are_read_or_the_parser_that_reads_them_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with_tool(monkeypatch)
    call = 'I call it:\n```json\n{"name": "run", "arguments": {"command": "validate"}}\n```'
    with case_of(TUNE, inference__model__tool_call_parser="hermes") as case:
        probe_by(case, lambda env, task, seed: Script(call))
        (finding,) = ask(case, "valid_actions")
    assert finding.verdict == "fail" and "B10" in finding.ids
    assert finding.lines == {"inference.model.tool_call_parser": "auto"} and "No tool call found" in finding.why
    with case_of(TUNE) as case:
        probe_by(case, lambda env, task, seed: Script(call))
        assert ask(case, "valid_actions")[0].verdict == "pass"


@pytest.mark.slow
def test_B10_calls_of_tools_that_there_are_not_are_told_with_those_that_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_tool(monkeypatch)
    call = '<tool_call>\n{"name": "execute", "arguments": {"command": "validate"}}\n</tool_call>'
    with case_of(TUNE) as case:
        probe_by(case, lambda env, task, seed: Script(call))
        (finding,) = ask(case, "valid_actions")
    assert finding.verdict == "fail" and finding.ids == ("B10",)
    assert finding.seen.startswith("0 of ") and "calls are of tools that there are not: 'execute'" in finding.seen
    assert "The tools that there are: run" in finding.why
    assert "supervised start" in finding.fix and finding.lines["warmstart.steps"] == 30, "no parser mends a name"
    known = call.replace("execute", "run")
    with case_of(TUNE) as case:
        probe_by(case, lambda env, task, seed: Script(call if seed % 2 else known))
        assert ask(case, "valid_actions")[0].verdict == "pass", "a beginner's slips are none"


BARE = CHATML.replace("<tool_call>\\n{", "{").replace("}\\n</tool_call>", "}")  # calls as Llama 3 writes them

END = "{{- '}\\n</tool_call>' }}"
CALL = CHATML[CHATML.index("{{- '<tool_call>") : CHATML.index(END) + len(END)]
# As Mistral's newer templates and Qwen3-Coder's write them.
NAMED = CHATML.replace(
    CALL, "{{- '[TOOL_CALLS]' + call['function']['name'] + '[ARGS]' + (call['function']['arguments'] | tojson) }}"
)
XML = CHATML.replace(
    CALL,
    "{{- '<tool_call>\\n<function=' + call['function']['name'] + '>\\n' }}"
    "{%- for key, value in call['function']['arguments'].items() %}"
    "{{- '<parameter=' + key + '>\\n' + value + '\\n</parameter>\\n' }}{%- endfor %}"
    "{{- '</function>\\n</tool_call>' }}",
)


@pytest.mark.parametrize(("template", "parser"), [(NAMED, "mistral"), (XML, "qwen3_coder")])
def test_B4_calls_in_other_models_forms_are_read_back(
    template: str, parser: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(TuneEnv, "action_format", "tools")
    assert template != CHATML
    (tmp_path / "chat.jinja").write_text(template)
    flags = {**TUNE, "model.chat_template": str(tmp_path / "chat.jinja")}
    for asked, verdict in (("auto", "pass"), (parser, "pass"), ("json", "fail")):
        with case_of(flags, inference__model__tool_call_parser=asked) as case:
            (finding,) = ask(case, "calls_round_trip")
        assert finding.verdict == verdict, finding


@pytest.mark.parametrize("template", [CHATML, BARE], ids=["hermes calls", "bare calls"])
@pytest.mark.parametrize("parser", ["auto", "hermes", "json"])
def test_B4_calls_that_the_template_writes_are_read_back(
    parser: str, template: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(TuneEnv, "action_format", "tools")
    (tmp_path / "chat.jinja").write_text(template)
    flags = {**TUNE, "model.chat_template": str(tmp_path / "chat.jinja")}
    with case_of(flags, inference__model__tool_call_parser=parser) as case:
        (finding,) = ask(case, "calls_round_trip")
    if (parser, template) != ("hermes", BARE):
        assert finding.verdict == "pass" and finding.seen.startswith("1 and 2 calls")
        return
    assert finding.verdict == "fail"
    assert finding.ids == ("B4",) and finding.lines == {"inference.model.tool_call_parser": "auto"}
    assert '{"name": "look"' in finding.seen and "none of them would run" in finding.why


def test_B4_a_template_with_calls_that_no_parser_reads_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(TuneEnv, "action_format", "tools")
    strange = CHATML.replace('<tool_call>\\n{"name": "', "CALL ").replace('", "arguments": ', " WITH ")
    assert strange != CHATML
    (tmp_path / "chat.jinja").write_text(strange)
    with case_of(TUNE, model__chat_template=str(tmp_path / "chat.jinja")) as case:
        (finding,) = ask(case, "calls_round_trip")
    assert finding.verdict == "fail" and "CALL look WITH" in finding.seen and not finding.lines


def test_B5_a_template_that_takes_no_call_before_its_answer_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It takes calls with their answers, and refuses the moment in between: that of every turn of an episode."""
    monkeypatch.setattr(TuneEnv, "action_format", "tools")
    strict = "{%- if messages[-1].tool_calls %}{{ raise_exception('as many answers as calls') }}{%- endif %}"
    (tmp_path / "chat.jinja").write_text(strict + CHATML)
    with case_of(TUNE, model__chat_template=str(tmp_path / "chat.jinja")) as case:
        (finding,) = ask(case, "calls_round_trip")
    assert finding.verdict == "fail" and "B5" in ids_of("calls_round_trip", finding)
    assert "as many answers as calls" in finding.seen and finding.fix
    assert "cannot have learned to call tools" in finding.why


def test_B4_without_tools_there_is_nothing_to_read_back() -> None:
    with case_of(TUNE) as case:
        assert ask(case, "calls_round_trip")[0].seen == "no environment has tools"


# --- B7 and B6 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["command", "tools", "text"])
def test_B7_is_silent_where_the_template_only_adds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TuneEnv, "action_format", kind)
    with case_of(TUNE) as case:
        (finding,) = ask(case, "template_is_stable")
    assert finding.verdict == "pass" and finding.seen.startswith(f"{kind}: three turns")


def test_B6_a_template_that_rewrites_history_is_told(tmp_path: Path) -> None:
    """It shows earlier replies in short, as some drop earlier thinking."""
    shorter = CHATML.replace(
        "'\\n' + (message['content'] or '') }}",
        "'\\n' + ((message['content'] or '')[:6] if message['role'] == 'assistant' and loop.revindex > 3 "
        "else (message['content'] or '')) }}",
    )
    assert shorter != CHATML
    (tmp_path / "chat.jinja").write_text(shorter)
    with case_of(TUNE, model__chat_template=str(tmp_path / "chat.jinja")) as case:
        (finding,) = ask(case, "template_is_stable")
    assert finding.verdict == "warn" and finding.ids == ("B6", "B7")
    assert finding.seen.startswith("with reply 3 (command) the template renders what came before otherwise: …")
    assert "I look" in finding.seen and "a sequence of its own" in finding.why and "chat_template" in finding.fix


def test_B7_a_separator_lost_between_turns_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line break after <|im_end|> is taken for a part of the reply, so it is never put there."""
    original = forest._past_stop
    monkeypatch.setattr(forest, "_past_stop", lambda rendered, end, stop: original(rendered, end, stop) + 1)
    with case_of(TUNE) as case:
        (finding,) = ask(case, "template_is_stable")
    assert finding.verdict == "fail" and finding.ids == ("B7",)
    assert "before reply 2 (command) the tokens read otherwise than the template" in finding.seen
    assert r"goes on '\n<|im_start|>" in finding.seen and "between turns" in finding.why


def test_B7_an_empty_list_of_tools_that_changes_the_prompt_is_caught(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "chat.jinja").write_text(CHATML.replace("or tools %}", "or tools is not none %}"))
    flags = {**TUNE, "model.chat_template": str(tmp_path / "chat.jinja")}
    with case_of(flags) as case:
        assert [f.verdict for f in ask(case, "template_is_stable")] == ["pass"]  # by design: empty is left out
    original = ChatTokenizer._apply

    def careless(self: ChatTokenizer, chat: Any, tools: Any, *others: Any) -> str:
        return original(self, chat, tools or [], *others)

    monkeypatch.setattr(ChatTokenizer, "_apply", careless)
    with case_of(flags) as case:
        finding = ask(case, "template_is_stable")[0]
    assert finding.verdict == "fail" and finding.ids == ("B7",)
    assert "an empty list of tools gives another prompt than no tools" in finding.seen


# --- B9 -------------------------------------------------------------------------------------------------


def teach_to_stop(case: Case, replies: Sequence[str] = ("7", "12", "3")) -> None:
    """A few supervised updates: the model answers briefly and closes its turn."""
    tokenizer, prompts = case.tokenizer, ["1+2=", "3+4=", "9+3=", "2+2="]
    end = tokenizer.encode("<|im_end|>")
    rows = []
    for prompt in prompts:
        for reply in replies:
            seen = tokenizer.encode(tokenizer.render([{"role": "user", "content": prompt}]))
            said = tokenizer.encode(reply) + end
            train = (False,) * len(seen) + (True,) * len(said)
            rows.append(Row(f"{prompt}{reply}#0", (*seen, *said), train, (-1.0,) * len(train), 1.0, 0.02))
    for _ in range(40):
        update(case, rows)


@pytest.fixture
def stopping() -> dict[str, str]:
    return {
        **ARITH,
        "trainer.model.train": "full",
        "trainer.optim.lr": "1e-2",
        "orchestrator.sampling.max_tokens": "24",
        "trainer.loss.importance_cap": "1",
    }


@pytest.mark.slow
def test_B9_a_stop_token_that_is_missing_is_caught(stopping: dict[str, str]) -> None:
    with case_of(stopping) as case:
        teach_to_stop(case)
        case.parts.loaded.tokenizer.stop_ids = (
            258,
        )  # <|pad|>: the tokenizer's files name another token than the model
        (finding,) = ask(case, "replies_end")
    assert finding.verdict == "fail" and ids_of("replies_end", finding) == ("B9",)
    assert "ran to max_tokens = 24" in finding.seen and "go on after <|im_end|> (257)" in finding.seen
    assert "sampling does not stop" in finding.why and "eos_token_id" in finding.fix


@pytest.mark.slow
def test_B9_is_silent_where_replies_end(stopping: dict[str, str]) -> None:
    with case_of(stopping) as case:
        teach_to_stop(case)
        (finding,) = ask(case, "replies_end")
    assert finding.verdict == "pass" and "stop tokens: <|im_end|> (257)" in finding.seen


def test_B9_replies_that_never_end_are_told() -> None:
    """Random weights seldom draw the stop token, and have two tokens to do so."""
    with case_of(ARITH, orchestrator__sampling__max_tokens="2") as case:
        (finding,) = ask(case, "replies_end")
    assert finding.verdict == "warn" and finding.lines == {"orchestrator.sampling.max_tokens": 4}
    assert "48 of 48 replies ran to max_tokens = 2 (100%" in finding.seen or "replies ran to max_tokens" in finding.seen
