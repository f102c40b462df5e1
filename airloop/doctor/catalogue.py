"""docs/failures.md, made of what there is: checks, alarms, and what cannot happen by design.

python -m airloop.doctor.catalogue > docs/failures.md
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from airloop.doctor.base import FAMILIES, Check, checks
from airloop.doctor.designs import DESIGN
from airloop.doctor.failures import WHAT

if TYPE_CHECKING:
    from airloop.watch.alarms.rules import Rule

HEAD = """\
# Failures, and what answers them

Made by `python -m airloop.doctor.catalogue > docs/failures.md`; a test keeps it current.

Every line is a failure that cost somebody hours or weeks. It is answered before a run (a check of `air doctor`, which
`air train` asks too), while it goes on (an alarm), or by design (it cannot happen, and the test named proves it).
`air doctor @ config.toml --only F1,F2` runs the checks of some lines. Exit codes: 0 all that was judged passes, 1 there
are warnings, 2 there are failures. Every answer says what was seen, why it is a failure, and what to change.

What the machine is too slow to show, or what hangs, is *not judged*: the report says the reason and, where it is known,
how long it would take here (“the probe's first replies would take about 9 min here”). That is counted apart, fails
nothing and stops no run. No verdict depends on a clock that was chosen for another machine: the probe first measures
how fast replies come, and gives its episodes as long as they need, up to 15 minutes in all and never longer than
`orchestrator.episode_timeout_s`.
"""


def answers(id: str) -> list[str]:
    """What answers a failure, a line each."""
    found = [f"**{check.stage} check** `{check.name}`: {_about(check)}" for check in checks() if id in check.ids]
    found += [
        f"**alarm** `{rule.name}` ({rule.severity}): {rule.name.replace('_', ' ')}"
        for rule in _rules()
        if rule.id == id
    ]
    if id in DESIGN:
        how, test = DESIGN[id]
        found.append(f"**design**: {how} (`{test}`)")
    return found


def make() -> str:
    lines = [HEAD]
    for letter, family in FAMILIES.items():
        lines += [f"## {letter}. {family[0].upper()}{family[1:]}", "", "| id | what goes wrong | what answers it |"]
        lines += ["|---|---|---|"]
        ids = sorted((id for id in WHAT if id[0] == letter), key=lambda id: int(id[1:]))
        lines += [f"| {id} | {WHAT[id]} | {'<br>'.join(answers(id))} |" for id in ids]
        lines.append("")
    others = [check for check in checks() for id in check.ids if id not in WHAT]
    lines += ["## Also looked at", "", "| id | check |", "|---|---|"]
    lines += [f"| {', '.join(i for i in c.ids if i not in WHAT)} | `{c.name}`: {_about(c)} |" for c in others]
    return "\n".join(lines) + "\n"


def _about(check: Check) -> str:
    """Its title, and what its docstring adds."""
    text = inspect.getdoc(check.run) or ""
    return f"{check.title}. {' '.join(text.split())}".replace("|", "\\|").strip()


def _rules() -> list[Rule]:
    from airloop.watch.alarms.monitor import rules

    return rules()


if __name__ == "__main__":
    print(make(), end="")
