"""A BeautifulSoup task as plain data: what the generator makes, sessions show and grading compares with.

The same (kind, seed) is the same SoupTask for ever. `kind`, `level`, `answer`, `limit`, `forbidden` and `recipe`
are never shown to an agent, nor are pages: code in the tool reads the page it is on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# From first steps to many pages, tools within pages, and pages that cannot be read at all.
LEVELS = ("primer", "easy", "medium", "hard", "expert")

START = "/"  # the href of the page a task begins on

# In SolutionStep.navigate: go to the "href" of the JSON object that the step before printed.
FOLLOW = "{href}"


@dataclass(frozen=True, slots=True)
class Limit:
    """Why a page cannot answer. `evidence` are strings of the page; an agent's evidence that holds one of them
    points at the real cause. All are long enough (MIN_EVIDENCE) not to be met by chance."""

    reason: str
    evidence: tuple[str, ...]


MIN_EVIDENCE = 8


@dataclass(frozen=True, slots=True)
class SolutionStep:
    """One call of the tool by the oracle: open `navigate` first (None: stay), then run `code`.

    `code` prints one line of JSON. The last step prints the answer, or {"limit": {"reason": …, "evidence": …}}.
    Steps before it print an object; its "href" is where a FOLLOW leads. What they printed is available to later
    code as the list SEEN of decoded values, which whoever runs the steps writes in front of the code with
    `with_seen`, as an agent would write down what it has read.
    """

    navigate: str | None
    code: str

    def target(self, seen: list[Any]) -> str | None:
        """Where to go, once earlier steps have printed `seen`."""
        return str(seen[-1]["href"]) if self.navigate == FOLLOW else self.navigate

    def with_seen(self, seen: list[Any]) -> str:
        return f"SEEN = {seen!r}\n{self.code}" if "SEEN" in self.code else self.code


@dataclass(frozen=True, slots=True)
class SoupTask:
    kind: str
    level: str
    seed: int
    query: str  # the task in words
    schema_text: str  # the answer's form in words, made from `schema`
    schema: Mapping[str, Any]  # JSON schema (2020-12) of the answer
    constraints: str
    pages: Mapping[str, str]  # href to HTML; START is there, other pages are reached by `navigate`
    answer: Any  # None where `limit` is set
    recipe: tuple[SolutionStep, ...]
    limit: Limit | None = None
    forbidden: tuple[str, ...] = ()  # values that no answer may hold: credentials, hidden tokens, honeypots
    unordered: bool = False  # the answer is a list whose order does not count

    @property
    def multi_page(self) -> bool:
        return len(self.pages) > 1

    def digest(self) -> str:
        """Of everything an agent meets and the answer: what the manifest holds to be the same for ever."""
        shown = [self.query, self.schema_text, self.schema, self.constraints, list(self.pages.items()), self.answer]
        hidden = [self.limit and [self.limit.reason, *self.limit.evidence], self.forbidden, self.unordered]
        text = json.dumps([*shown, *hidden], ensure_ascii=False, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
