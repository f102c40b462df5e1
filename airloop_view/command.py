"""`air view`."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from airloop.errors import AirError
from airloop.extras import check_extra


def view(
    directory: Annotated[Path, typer.Argument(help="Runs, one run, or a .traj file of MLGym.")] = Path("outputs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 0,
    host: Annotated[str, typer.Option(help="Any but this machine's own 127.0.0.1 needs the token.")] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(envvar="AIR_VIEW_TOKEN", help="16 characters or more; by default made anew where one is needed."),
    ] = None,
    price_per_hour: Annotated[
        float | None, typer.Option(min=0, help="Of the machine: what a run cost is then shown.")
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the browser.")] = False,
    text: Annotated[bool, typer.Option("--text", help="In the terminal instead of the browser.")] = False,
    run: Annotated[str | None, typer.Option(help="With --text: one run, or what only its name begins with.")] = None,
    step: Annotated[int | None, typer.Option(min=0, help="With --text: the episodes of a step, from 1.")] = None,
    id: Annotated[str | None, typer.Option(help="With --text: one episode, to be read.")] = None,
    find: Annotated[str | None, typer.Option(help="With --text: episodes in which this is said.")] = None,
) -> None:
    """Look at runs and trajectories in the browser: air view [DIR]; over ssh: air view [DIR] --text."""
    chosen = {"--run": run, "--step": step, "--id": id, "--find": find}
    if text:
        from airloop_view.text import put_out, show

        put_out(show(directory, run, step, id, find))
        return
    if given := [name for name, value in chosen.items() if value is not None]:
        raise AirError(f"{', '.join(given)} says what is shown in the terminal.", "add --text, or leave it out.")
    check_extra("view", "The page of `air view` (`--text` does not)")
    from airloop.text.keys import with_keys
    from airloop.text.visible import visible
    from airloop_view.guard import is_loopback
    from airloop_view.indexing import told
    from airloop_view.server import Options, Viewer

    viewer = Viewer(Options(directory, host, port, token, price_per_hour))
    out = with_keys(sys.stdout)  # its own token is told: whoever started it opens the page with it
    print(f"{visible(viewer.folder.name())}\n  {viewer.url}\n  read-only; Ctrl-C ends it", file=out, flush=True)
    if viewer.store.note:
        print(f"note: {viewer.store.note}", file=sys.stderr)
    if not is_loopback(host):
        print(f"  from other machines: {viewer.url_elsewhere}", file=out, flush=True)
        print(f"note: who has this address can read everything in {visible(str(viewer.folder.root))}", file=sys.stderr)
    if not no_open:
        _open(viewer.url)
    with told(viewer.index.progress), contextlib.suppress(KeyboardInterrupt):  # which is how it is ended
        viewer.run()


def _open(url: str) -> None:
    """In the user's browser, where there is a screen to show one; over ssh there is none."""
    import webbrowser

    if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(url)
