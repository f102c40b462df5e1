"""`air lab`: hypotheses, their paired runs and their verdicts."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from airloop.commands.common import Json, print_json
from airloop.errors import AirError
from airloop.extras import install_line, missing

if TYPE_CHECKING:
    from airloop_lab.hypothesis_report import Report

HELP = "Hypotheses: paired runs on several seeds, and a verdict."
lab = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=HELP)
File = Annotated[str, typer.Argument(help="A hypothesis' TOML, or the name of one that `air lab list` shows.")]


@lab.command("list")
def list_hypotheses(
    directory: Annotated[
        Path | None, typer.Argument(help="Where to look; by default those that come with air.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The hypotheses and sweeps of a directory."""
    from airloop_lab.hypotheses import HYPOTHESES, format_list, parse_hypothesis, read_hypothesis
    from airloop_lab.hypotheses import as_json as hypothesis_json

    place = directory or HYPOTHESES
    files = sorted(place.glob("*.toml"))
    if not files:
        raise AirError(f"{place} has no hypothesis: no .toml is there.", "name a directory: air lab list DIR")
    found, refused = [], []
    for file in files:
        try:
            # Those that come with air are sound, by its tests: their hundred configs take a second.
            found.append(read_hypothesis(file) if directory else parse_hypothesis(file))
        except AirError as error:
            refused.append(error)
    print_json([hypothesis_json(one) for one in found]) if as_json else print(format_list(found))
    for refusal in refused:  # one that is wrong hides none of the others
        print(f"air: {refusal}", file=sys.stderr)
    sys.exit(1 if refused else 0)


@lab.command()
def show(file: File, as_json: Json = False) -> None:
    """A hypothesis: what is changed, what decides, what it may cost."""
    from airloop_lab.hypotheses import as_json as hypothesis_json
    from airloop_lab.hypotheses import find_hypothesis, format_hypothesis, read_hypothesis

    found = read_hypothesis(find_hypothesis(file))
    print_json(hypothesis_json(found)) if as_json else print(format_hypothesis(found))


@lab.command()
def run(
    file: File,
    seeds: Annotated[str | None, typer.Option(help="As in 0,1,2 or 0-4; by default the hypothesis' own.")] = None,
    out: Annotated[Path | None, typer.Option(help="Default: outputs/lab/NAME; one that was stopped goes on.")] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Runs at a time; each then has GPUs of its own, as far as there are.")
    ] = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check all that can be checked, and say what would run.")
    ] = False,
    as_json: Json = False,
) -> None:
    """The paired runs of a hypothesis, then its verdict. Exits with 1 if a run failed or the budget ran out."""
    from airloop.watch.display.display import Display
    from airloop_lab.hypotheses import find_hypothesis, read_hypothesis

    found = read_hypothesis(find_hypothesis(file))
    chosen = found.written.seeds if seeds is None else _seeds(seeds)
    place = out or Path("outputs") / "lab" / found.name
    if dry_run:
        from airloop_lab.hypothesis_plan import format_plan, make_plan

        plan = make_plan(found, chosen, place, jobs)
        print_json(plan) if as_json else print(format_plan(plan))
        return
    with Display(quiet=as_json) as display:
        display.say(f"air lab run: {found.name}, seeds {', '.join(map(str, chosen))}")
        display.phase("loading libraries")
        from airloop_lab.hypothesis_runs import run_hypothesis

        made = run_hypothesis(found, chosen, place, jobs, display)
    ended = _tell(made.path, as_json)
    sys.exit(1 if ended.unfinished else 0)


@lab.command()
def report(
    directory: Annotated[Path, typer.Argument(help="What `air lab run` made, or a directory of several.")],
    as_json: Json = False,
) -> None:
    """Verdicts by the rules that were written before, with intervals and curves; draws report.png."""
    from airloop_lab.hypothesis_report import find_labs, make_report, note_look
    from airloop_lab.hypothesis_report_text import format_verdicts, verdicts_json

    found = find_labs(directory)
    if not found:
        raise AirError(f"{directory} holds no runs of a hypothesis.", "name what `air lab run` made.")
    if found == [directory]:
        _tell(directory, as_json)
        return
    reports = [make_report(path) for path in found]
    print_json(verdicts_json(reports)) if as_json else print(format_verdicts(reports))
    for one in reports:
        note_look(one)


def _tell(directory: Path, as_json: bool) -> Report:
    from airloop_lab.confirming import write_confirming
    from airloop_lab.hypothesis_plot import plot_report
    from airloop_lab.hypothesis_report import make_report, note_look
    from airloop_lab.hypothesis_report_text import as_json as report_json
    from airloop_lab.hypothesis_report_text import format_next, format_report

    made = make_report(directory)
    picture = None if missing("plot") else str(plot_report(made, directory / "report.png"))
    following = write_confirming(made)
    if as_json:
        print_json({**report_json(made), "picture": picture, "confirm": following and str(following)})
    else:
        left_out = f"left out, it needs matplotlib ({install_line('plot')})"
        told = f"\n\n{format_next(made, following)}" if following else ""
        print(f"{format_report(made)}{told}\n\npicture: {picture or left_out}")
    note_look(made)
    return made


def _seeds(text: str) -> list[int]:
    """0,1,2 or 0-4 or both."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None:
            raise AirError(f"--seeds {text!r}: {part!r} is no seed.", "write --seeds 0,1,2 or --seeds 0-4")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    if not found or len(set(found)) < len(found):
        raise AirError(f"--seeds {text!r} names {'a seed twice' if found else 'no seed'}.", "write --seeds 0-4")
    return found
