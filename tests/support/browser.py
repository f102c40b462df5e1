"""A real Chromium on the real server. Whatever a page does that it must not do is noted, and looked at after it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
needs_chromium = pytest.mark.skipif(
    not Path(CHROMIUM).exists(), reason="needs Chromium: apt-get install chromium; nothing else can draw the page"
)
LAPTOP = {"width": 1366, "height": 768}
PATIENCE_S = 60  # until something is shown: Plotly alone keeps a slow core that others share busy for ten seconds


@dataclass
class Seen:
    """What must stay empty. By kind, not by wording, which differs between versions of Chromium."""

    errors: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # answers of 400 and above, which the browser notes as errors
    blocked: list[str] = field(default_factory=list)  # what our content security policy has kept from happening
    dialogs: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    def clear(self) -> None:
        for noted in (self.errors, self.refused, self.blocked, self.dialogs, self.outside):
            noted.clear()

    def note(self, entry: dict[str, Any]) -> None:
        """An entry of the browser's log."""
        if entry["level"] == "error":
            {"network": self.refused, "security": self.blocked}.get(entry["source"], self.errors).append(entry["text"])


@dataclass
class Tab:
    page: Any
    base: str
    seen: Seen

    def open(self, route: str = "", **values: Any) -> Any:
        """Goes to a route, and waits until it is shown."""
        query = urlencode(values, doseq=True)
        self.page.goto("about:blank")
        self.page.goto(f"{self.base}#/{route}{'?' + query if query else ''}")
        return self.shown()

    def shown(self) -> Any:
        self.page.wait_for_selector("main[aria-busy=false]")
        return self.page

    def text(self, selector: str = "main") -> str:
        return str(self.page.locator(selector).inner_text())

    def episodes(self, **values: Any) -> list[dict[str, Any]]:
        with urlopen(f"{self.base}api/trajectories?{urlencode({**values, 'limit': 500})}") as answer:
            rows: list[dict[str, Any]] = json.load(answer)["rows"]
        return rows

    def until(self, condition: str) -> None:
        """Waits for a JavaScript expression to hold. Playwright's own way needs eval, which our policy forbids."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.page.evaluate(condition):
            assert time.monotonic() < deadline, f"never true: {condition}"
            self.page.wait_for_timeout(30)

    def harmed(self) -> Any:
        return self.page.evaluate("window.harmed")


@contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def tab(browser: Any, base: str, **options: Any) -> Iterator[Tab]:
    """A fresh profile with one tab. After it: no error on the console, no dialog, no request to anywhere else."""
    context = browser.new_context(viewport=LAPTOP, accept_downloads=True, **options)
    context.set_default_timeout(PATIENCE_S * 1000)
    seen = Seen()
    page = context.new_page()
    protocol = context.new_cdp_session(page)
    protocol.on("Log.entryAdded", lambda added: seen.note(added["entry"]))
    protocol.on(
        "Runtime.consoleAPICalled", lambda call: seen.errors.append(str(call)) if call["type"] == "error" else None
    )
    protocol.send("Log.enable")
    protocol.send("Runtime.enable")
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on("dialog", lambda dialog: seen.dialogs.append(dialog.message) or dialog.dismiss())  # type: ignore[func-returns-value]
    page.on("request", lambda request: seen.outside.append(request.url) if _is_outside(request.url, base) else None)
    try:
        yield Tab(page, base, seen)
        assert seen == Seen(), seen
    finally:
        context.close()


def _is_outside(url: str, base: str) -> bool:
    return not url.startswith((base, "about:", "data:", "blob:"))
