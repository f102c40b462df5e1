"""What the doctor found, for people, for machines, and for the shell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from airloop.config.mistakes import correction
from airloop.doctor.base import Finding
from airloop.doctor.examine import STOPS_TOO, WORST, Result
from airloop.errors import AirError

MARKS = {"pass": "pass", "warn": "WARN", "fail": "FAIL", "not judged": " ?  ", None: " –  "}
# Findings in full, also those that pass: their evidence may be pages of tokens.
SHORT_DETAIL = 6


def exit_code(results: Sequence[Result]) -> int:
    """0: all that was judged passes. 1: there are warnings. 2: there are failures."""
    verdicts = {result.verdict for result in results}
    return 2 if "fail" in verdicts else 1 if "warn" in verdicts else 0


def format_report(results: Sequence[Result], verbose: bool = False) -> str:
    """A table by family, then each finding that is no pass."""
    ordered = sorted(results, key=lambda r: (r.check.ids[0][0], r.check.ids))
    lines: list[str] = []
    for family, members in groupby(ordered, key=lambda r: (r.check.ids[0][0], r.check.family)):
        lines += ["", f"{family[0]}. {family[1]}" if family[1] != "other" else "other"]
        for result in members:
            lines += _row(result, verbose)
    troubles = [(result, finding) for result in ordered for finding in result.findings if finding.verdict != "pass"]
    troubles.sort(key=lambda trouble: WORST.index(trouble[1].verdict))
    for result, finding in troubles:
        lines += ["", *_trouble(result, finding, verbose)]
    return "\n".join([*lines, "", summary(results)]).lstrip("\n")


def summary(results: Sequence[Result]) -> str:
    findings = [finding.verdict for result in results for finding in result.findings]
    left_out = sum(result.verdict is None for result in results)
    seconds = sum(result.seconds for result in results)
    counts = [f"{len(results) - left_out} checks in {seconds:.1f} s"]
    counts += [f"{n} {name}" for name in ("fail", "warn", "not judged") if (n := findings.count(name))]
    counts += [f"{left_out} not done"] if left_out else []
    return ", ".join(counts) + ("" if len(counts) > 1 else ", all pass") + "."


def _row(result: Result, verbose: bool) -> list[str]:
    said = result.not_done or _one_line(result)
    ids = " ".join([*result.check.ids[:3], *(["…"] if len(result.check.ids) > 3 else [])])
    lines = [f"  {MARKS[result.verdict]}  {ids:12s} {result.check.title}: {said}"]
    if verbose:
        lines[0] += f"  [{result.check.name}, {result.check.stage}, {result.seconds:.2f} s]"
        for finding in result.findings:
            lines += [f"        {line}" for line in finding.detail.splitlines() if finding.verdict == "pass"]
    return lines


def _one_line(result: Result) -> str:
    """Of a check that passes, what it saw; of one that does not, how much follows below."""
    if result.verdict == "pass":
        return "; ".join(finding.seen for finding in result.findings)
    count = sum(finding.verdict != "pass" for finding in result.findings)
    return "see below" if count == 1 else f"{count} findings, see below"


def _trouble(result: Result, finding: Finding, verbose: bool) -> list[str]:
    ids = ", ".join(finding.ids or result.check.ids)
    mark = MARKS[finding.verdict] if finding.verdict != "not judged" else "NOT JUDGED"
    lines = [f"{mark} {ids}: {_lines(finding.seen, 4)}", f"  why: {_lines(finding.why, 7)}"]
    lines.append(f"  fix: {_lines(fix_text(finding), 2)}")
    detail = finding.detail.splitlines()
    shown = detail if verbose else detail[:SHORT_DETAIL]
    lines += [f"    | {line}" for line in shown]
    if len(detail) > len(shown):
        lines.append(f"    | … {len(detail) - len(shown)} more lines with --verbose")
    return lines


def fix_text(finding: Finding) -> str:
    """What to change, with the corrected TOML lines."""
    if not finding.lines:
        return finding.fix
    head, _, lines = correction(finding.lines, as_flags=False).partition("\n")
    if not lines:
        return f"{finding.fix.rstrip('.:')} ({head})"
    where = " (above the first [section])" if "above" in head else ""
    return f"{finding.fix.rstrip('.:')}{where}:\n{lines}"


def _lines(text: str, indent: int) -> str:
    return text.rstrip().replace("\n", "\n" + " " * indent)


def as_json(results: Sequence[Result]) -> dict[str, Any]:
    return {
        "exit_code": exit_code(results),
        "seconds": sum(result.seconds for result in results),
        "checks": [
            {
                "name": result.check.name,
                "ids": list(result.check.ids),
                "family": result.check.family,
                "stage": result.check.stage,
                "title": result.check.title,
                "verdict": result.verdict,
                "not_done": result.not_done,
                "seconds": round(result.seconds, 4),
                "findings": [_finding_json(result, finding) for finding in result.findings],
            }
            for result in results
        ],
    }


def _finding_json(result: Result, finding: Finding) -> dict[str, Any]:
    return {
        "verdict": finding.verdict,
        "ids": list(finding.ids or result.check.ids),
        "seen": finding.seen,
        "why": finding.why,
        "fix": finding.fix,
        "lines": dict(finding.lines),
        "change": fix_text(finding),  # the fix with its lines as TOML
        "detail": finding.detail,
    }


def refusal(report: Mapping[str, Any]) -> AirError | None:
    """What stops a run, of a report as JSON, in one error; None where nothing does."""
    found = [f for check in report["checks"] for f in check["findings"] if f["verdict"] == "fail"]
    if not found:
        return None
    if len(found) == 1:
        return AirError(_problem(found[0]), found[0]["change"])
    lines = [f"The doctor found {len(found)} failures:"]
    for number, finding in enumerate(found, 1):
        lines += [f"{number}. {_problem(finding)}", f"  fix: {_lines(finding['change'], 2)}"]
    return AirError("\n".join(lines))


def _problem(finding: Mapping[str, Any]) -> str:
    """What was seen and why it is a failure; a refusal of `air train` itself is reason enough."""
    seen = f"{', '.join(finding['ids'])}: {finding['seen']}"
    return seen if finding["why"] == STOPS_TOO else f"{seen}\n  why: {_lines(finding['why'], 2)}"


def unjudged(report: Mapping[str, Any]) -> list[str]:
    """Of a report as JSON, what could not be judged, and why, each in one text."""
    found: dict[tuple[str, str], list[str]] = {}  # one reason may hold for many
    for check in report["checks"]:
        for finding in check["findings"]:
            if finding["verdict"] == "not judged":
                found.setdefault((finding["seen"], finding["change"]), []).extend(finding["ids"])
    return [f"{', '.join(dict.fromkeys(ids))} not judged: {seen}. {fix}" for (seen, fix), ids in found.items()]


def warnings(report: Mapping[str, Any], leave_out: Sequence[str] = ()) -> list[str]:
    """Of a report as JSON, each in one text."""
    return [
        f"{', '.join(finding['ids'])}: {finding['seen']}: {finding['why']}. Fix: {finding['change']}"
        for check in report["checks"]
        for finding in check["findings"]
        if finding["verdict"] == "warn" and check["name"] not in leave_out
    ]
