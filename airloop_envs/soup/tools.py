"""What the agent is told: the tools it may call and the words around a task. Nothing here depends on a task's kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airloop_envs.soup.grading import REASONS, Answer
from airloop_envs.soup.spec import SoupTask

SYSTEM = f"""You read web pages with Python. You do not see the page; the code that you run with run_python does:
- HTML is the page, QUERY and CONSTRAINTS are the task's words, make_soup(html=HTML, parser="html.parser") returns a \
BeautifulSoup object; the parsers "lxml" and "html5lib" are there too.
- Every call is a fresh process without network or files. Only what it prints comes back to you.
- Fewer calls are better; more than ten earn nothing.
End with one call of answer:
- found: {{"status": "ok", "answer": <in the form that the task asks for; numbers and texts as the form says>}}
- not in the page's HTML, because a script, an image, a canvas or a PDF has it: {{"status": "limit", "answer": null, \
"limit": {{"reason": one of {", ".join(REASONS)}, "evidence": a piece of the HTML that shows it, copied exactly}}}}
Never answer with passwords, tokens or other secrets of a page."""

SHORT = """Read the web page with Python: run_python(code) runs code that may use HTML and make_soup() and prints what \
you need. Then call answer with status "ok" and the answer."""

MORE_PAGES = "The site has more pages: navigate(href) opens another one, and HTML is then that page."

TEACH = 'Call one of the tools; when you know the result, call answer with {"status": "ok", "answer": …}.'
STOPPED = "[stopped after"  # how the answer to code that ran out of time ends: this, and the seconds
STATUS = 'Nothing was answered: "status" must be "ok" or "limit".'
NO_ANSWER = 'Nothing was answered: status "ok" needs "answer".'
NO_LIMIT = 'Nothing was answered: status "limit" needs "limit": {"reason": "…", "evidence": "…"}, both texts.'


def opening_texts(task: SoupTask, short: bool) -> tuple[str, str]:
    """System and user message."""
    more = [MORE_PAGES] if task.multi_page else []
    user = [task.query, task.schema_text, *([task.constraints] if task.constraints else []), *more]
    return SHORT if short else SYSTEM, "\n".join(user)


def tool_schemas(task: SoupTask, short: bool) -> tuple[dict[str, Any], ...]:
    """`answer` takes any JSON: its form is in the task's words, where a model has to read it."""
    code = {"type": "string"} if short else {"type": "string", "description": "Python; print what you want to see"}
    tools = [_tool("run_python", "Runs Python on the page.", {"code": code}, ["code"])]
    if task.multi_page:
        href = {"type": "string", "description": "as a link of the page has it"}
        tools.append(_tool("navigate", "Opens another page of the site.", {"href": href}, ["href"]))
    fields: dict[str, Any] = {"status": {"enum": ["ok", "limit"]}, "answer": {}}
    if not short:
        limit = {"reason": {"enum": list(REASONS)}, "evidence": {"type": "string"}}
        fields["limit"] = {"type": "object", "properties": limit, "required": ["reason", "evidence"]}
    return (*tools, _tool("answer", "Ends the task.", fields, ["status", "answer"]))


def _tool(name: str, about: str, fields: Mapping[str, Any], required: list[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": fields, "required": required}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


def read_answer(arguments: Mapping[str, Any]) -> Answer | str:
    """The answer in a call's arguments, or what is wrong with their form. What `answer` holds is taken as it is."""
    status = arguments.get("status")
    if status == "ok":
        return Answer("ok", arguments["answer"]) if "answer" in arguments else NO_ANSWER
    if status != "limit":
        return STATUS
    limit = arguments.get("limit")
    reason, evidence = (limit.get("reason"), limit.get("evidence")) if isinstance(limit, Mapping) else (None, None)
    if not isinstance(reason, str) or not isinstance(evidence, str):
        return NO_LIMIT
    return Answer("limit", arguments.get("answer"), reason, evidence)
