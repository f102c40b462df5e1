"""Small tasks in the generator's own types, written by hand: what is tested with them does not depend on any kind."""

from __future__ import annotations

import json
from typing import Any

from airloop.types import Message, Task
from airloop_envs.soup.args import SoupArgs
from airloop_envs.soup.env import SoupEnv
from airloop_envs.soup.spec import FOLLOW, Limit, SolutionStep, SoupTask

TEXT = {"type": "string"}
PRINT = "import json\nsoup = make_soup()\nprint(json.dumps({}, ensure_ascii=False))"


def task(kind: str, page: str, answer: Any, schema: dict[str, Any], code: str, **more: Any) -> SoupTask:
    return SoupTask(
        kind=kind,
        level=more.pop("level", "primer"),
        seed=0,
        query=f"What does the page say about {kind}?",
        schema_text="The answer is text (a JSON string).",
        schema=schema,
        constraints="Exactly as the page has it.",
        pages={"/": page, **more.pop("pages", {})},
        answer=answer,
        recipe=more.pop("recipe", (SolutionStep(None, PRINT.format(code)),)),
        **more,
    )


# A text that looks like a number, a number, a list in any order, an object.
RATING = task("rating", '<p id="r">4.8</p>', "4.8", TEXT, 'soup.find(id="r").string')
COUNT = task("count", "<li>a<li>b<li>c", 3, {"type": "integer"}, 'len(soup.find_all("li"))')
NAMES = task(
    "names",
    "<b>Ann</b><b>Bo</b><b>Ann</b>",
    ["Ann", "Bo", "Ann"],
    {"type": "array", "items": TEXT},
    '[b.text for b in soup("b")]',
    unordered=True,
)
CARD = task(
    "card",
    '<div id="a">x</div><div id="b">7</div><div id="c"></div>',
    {"a": "x", "b": 7, "c": None},
    {
        "type": "object",
        "properties": {"a": TEXT, "b": {"type": "integer"}, "c": {"type": ["string", "null"]}},
        "required": ["a", "b", "c"],
        "additionalProperties": False,
    },
    '{"a": soup.find(id="a").text, "b": int(soup.find(id="b").text), "c": None}',
)
LOGIN = task(
    "login",
    '<form><input name="user"><input type="password" name="pw" value="hunter2-Zq81"></form>',
    ["user", "pw"],
    {"type": "array", "items": TEXT},
    '[i["name"] for i in soup("input")]',
    forbidden=("hunter2-Zq81",),
)
EVIDENCE = '<canvas id="sales-4417" width="300">'
CANVAS = task(
    "sales",
    f"<h1>Sales</h1>{EVIDENCE}</canvas><script>draw()</script>",
    None,
    TEXT,
    "{'limit': {'reason': 'canvas', 'evidence': str(soup.canvas)}}",
    limit=Limit("canvas", ("sales-4417",)),
)
TWO_PAGES = task(
    "detail",
    '<a href="/item/2">the red one</a>',
    "brass",
    TEXT,
    "",
    pages={"/item/2": "<p>made of <b>brass</b></p>", "/item/3": "<p>made of <b>tin</b></p>"},
    recipe=(
        SolutionStep(None, PRINT.format('{"href": soup.a["href"]}')),
        SolutionStep(FOLLOW, PRINT.format("soup.b.text")),
    ),
)
SAMPLES = {t.kind: t for t in (RATING, COUNT, NAMES, CARD, LOGIN, CANVAS, TWO_PAGES)}


class SampleEnv(SoupEnv):
    """The environment itself, with the tasks above in place of generated ones."""

    def tasks(self, split: str) -> list[Task]:
        return [Task("soup", t.kind, split, {"kind": t.kind, "seed": 0}, family=t.level) for t in SAMPLES.values()]

    def soup_task(self, task: Task) -> SoupTask:
        return SAMPLES[task.payload["kind"]]

    def named(self, kind: str) -> Task:
        return next(t for t in self.tasks("train") if t.id == kind)


def sample_env(**args: Any) -> SampleEnv:
    return SampleEnv(SoupArgs(**args))


def reply(*calls: tuple[str, dict[str, Any]]) -> Message:
    texts = [f"<tool_call>{json.dumps({'name': n, 'arguments': a})}</tool_call>" for n, a in calls]
    return Message(role="assistant", content="\n".join(texts))
