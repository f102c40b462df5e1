"""The viewer's page in a real browser: every way to get somewhere, and every way to get harmed."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browser import Seen, Tab, chromium, needs_chromium, tab
from support.viewed_runs import CHILD, HARM, MANY_TOKENS, RUN, make_runs

from airloop_view.server import Options, serving

pytestmark = [needs_chromium, pytest.mark.slow]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("viewed")
    make_runs(path)
    return path


@pytest.fixture(scope="module")
def base(directory: Path) -> Iterator[str]:
    with serving(Options(directory)) as viewer:
        yield viewer.url


@pytest.fixture(scope="module")
def browser(base: str) -> Iterator[Any]:
    """After the runs: while Playwright holds this thread's event loop, nothing can be trained in it."""
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def profile(browser: Any, base: str) -> Iterator[Tab]:
    """One for all tests, as a person has one: its cache makes the second page fast."""
    with tab(browser, base) as opened:
        yield opened


@pytest.fixture
def view(profile: Tab) -> Iterator[Tab]:
    profile.seen.clear()
    yield profile
    assert profile.seen == Seen()


def first_episode(view: Tab) -> dict[str, Any]:
    return view.episodes(run=RUN, source="step_0001")[0]


def noted(view: Tab, where: list[str]) -> None:
    """Waits for an entry of the browser's log, which comes when it comes; and for one more that may be under way."""
    deadline = time.monotonic() + 10
    while not where and time.monotonic() < deadline:
        view.page.wait_for_timeout(30)
    view.page.wait_for_timeout(100)


# --- finding one's way ------------------------------------------------------------------------------------------


@pytest.mark.long
def test_from_the_runs_to_a_turn_and_back_by_keyboard_alone(view: Tab) -> None:
    page = view.open()
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.tagName") == "A"
    page.keyboard.press("Enter")
    view.until("document.title.startsWith('exp1')")
    page.keyboard.press("j")  # the first step
    page.wait_for_selector(".groups table")
    assert "step=0" in page.url
    page.keyboard.press("l")
    page.wait_for_selector("main[data-page=list] tbody a")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector("main[data-page=trajectory] .stepper a")
    here = page.url
    page.keyboard.press("j")
    view.until(f"location.href !== '{here}'")
    page.wait_for_selector(".stepper a:has-text('Previous')")
    page.keyboard.press("k")
    view.until(f"location.href === '{here}'")
    wanted = "new URLSearchParams(location.hash.split('?')[1]).get('id')"
    view.until(f"document.querySelector('.crumbs li:last-child').textContent === {wanted}")
    view.shown()
    page.keyboard.press("n")
    assert page.evaluate("document.activeElement.id") == "turn-1" and page.url.endswith("turn=1")
    page.keyboard.press("t")
    page.wait_for_selector("main[data-page=tokens] .tokens")
    page.keyboard.press("u")
    page.wait_for_selector("main[data-page=trajectory]")
    page.keyboard.press("u")
    page.wait_for_selector("main[data-page=list]")


def test_help_lists_the_keys_and_they_can_be_switched_off(view: Tab) -> None:
    page = view.open()
    page.keyboard.press("?")
    assert "overlay the chosen runs" in view.text("dialog[open]")
    page.get_by_label("Single-letter keys are on").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.tagName") != "A"
    page.get_by_label("Keys and help").click()
    page.get_by_label("Single-letter keys are on").check()


def test_the_first_tab_skips_to_the_content(view: Tab) -> None:
    page = view.open()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


@pytest.mark.long
def test_a_link_leads_to_a_turn_a_token_a_step_and_a_part(view: Tab) -> None:
    row = first_episode(view)
    page = view.open("trajectory", run=RUN, id=row["id"], turn=1)
    assert page.evaluate("document.activeElement.dataset.turn") == "1"
    page = view.open("tokens", run=RUN, id=row["id"], at=3, by="logprob")
    assert page.evaluate("document.activeElement.dataset.i") == "3" and "4 of" in view.text(".token-detail")
    assert page.get_by_label("Log-prob, sampler").is_checked()
    page = view.open("run", run=RUN, step=1, part="config")
    page.wait_for_selector(".groups table")
    assert "Step 2 of 2" in view.text() and "trainer.optim.lr" in view.text()
    page = view.open("run", run=CHILD, part="config")
    assert "Changed since exp1.0-arith-1115" in re.sub(r"\s+", " ", view.text())


@pytest.mark.long
def test_runs_are_filtered_sorted_and_laid_over_one_another(view: Tab) -> None:
    page = view.open()
    page.get_by_label("Filter runs").fill("1116")
    assert "2 runs, 1 shown" in view.text()
    page.get_by_label("Filter runs").fill("")
    page.get_by_role("button", name="Run", exact=True).click()
    assert page.locator("th[aria-sort=ascending]").inner_text().strip() == "Run"
    page.get_by_label(f"Choose {RUN}").check()
    page.get_by_label(f"Choose {CHILD}").check()
    page.get_by_role("link", name="Overlay 2 runs").click()
    page.wait_for_selector(".js-plotly-plot .scatterlayer path.js-line")
    assert page.locator(".js-plotly-plot").first.locator(".scatterlayer .trace").count() == 2
    assert "trainer.optim.lr" in view.text()


def test_a_list_is_searched_and_filtered(view: Tab) -> None:
    page = view.open("list", run=RUN)
    everything = int(re.sub(r"\D", "", view.text(".head [role=status]").split("found")[0]))
    page.get_by_label("From", exact=True).select_option("step_0001")
    view.until(f"!document.querySelector('.head [role=status]').textContent.startsWith('{everything}')")
    assert "source=step_0001" in page.url
    page.get_by_label("Search in the text").fill("no such word anywhere")
    page.wait_for_selector("text=No trajectory is like that")
    page.get_by_role("button", name="Clear").click()
    page.wait_for_selector(f"text={everything} found")


@pytest.mark.long
def test_what_is_wrong_is_said_with_what_to_do(browser: Any, base: str) -> None:
    with tab(browser, base) as view:
        view.open("nowhere")
        assert "There is no page" in view.text() and "What to do" in view.text()
        view.open("run", run="../../etc")
        assert "There is no run" in view.text() and "What to do" in view.text()
        noted(view, view.seen.refused)
        assert len(view.seen.refused) == 1  # the browser's own note of the 404
        view.seen.refused.clear()


@pytest.mark.long
def test_an_empty_directory_teaches(browser: Any, tmp_path: Path) -> None:
    with serving(Options(tmp_path)) as viewer, tab(browser, viewer.url) as view:
        view.open()
        assert f"No runs in {tmp_path} yet" in view.text() and "air train quickstart" in view.text()
        view.open("list")
        assert "air train quickstart" in view.text()


@pytest.mark.long
def test_colours_are_chosen_and_kept(browser: Any, base: str) -> None:
    with tab(browser, base) as view:
        check_colours(view)


def check_colours(view: Tab) -> None:
    page = view.open()
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.locator("#theme").click()
    page.locator("#theme").click()
    assert page.locator("#theme").inner_text() == "Dark" and page.evaluate(ground) != light
    page.reload()
    view.shown()
    assert page.locator("#theme").inner_text() == "Dark" and page.evaluate(ground) != light


# --- live -------------------------------------------------------------------------------------------------------


def test_a_new_line_of_metrics_appears_without_a_reload(browser: Any, directory: Path, tmp_path: Path) -> None:
    shutil.copytree(directory / RUN, tmp_path / RUN, ignore=shutil.ignore_patterns("trajectories", "evaluations"))
    with serving(Options(tmp_path)) as viewer, tab(browser, viewer.url) as view:
        page = view.open()
        page.wait_for_selector("#live[data-state=on]")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.get_by_label(f"Choose {RUN}").focus()
        metrics = tmp_path / RUN / "metrics.jsonl"
        last = [json.loads(line) for line in metrics.read_text().splitlines() if '"train"' in line][-1]
        with metrics.open("a") as file:
            file.write(json.dumps(last | {"step": 2, "reward": 0.625}) + "\n")
        page.wait_for_selector("td:has-text('3 / 2')")
        assert "step 3" in page.locator("#said").text_content()
        assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("Choose")  # focus stayed
        assert 1 <= len([url for url in asked if "/api/runs" in url]) <= 3  # told, not polled
        quiet = len(asked)
        page.wait_for_timeout(2500)
        assert len(asked) == quiet


def test_a_run_that_is_open_before_its_first_step_gets_its_slider(
    browser: Any, directory: Path, tmp_path: Path
) -> None:
    left_out = shutil.ignore_patterns("trajectories", "evaluations", "metrics.jsonl")
    shutil.copytree(directory / RUN, tmp_path / RUN, ignore=left_out)
    with serving(Options(tmp_path)) as viewer, tab(browser, viewer.url) as view:
        page = view.open("run", run=RUN, part="config")
        page.wait_for_selector("#live[data-state=on]")
        page.get_by_label("Filter keys").fill("optim.lr")
        shutil.copy(directory / RUN / "metrics.jsonl", tmp_path / RUN)
        page.get_by_label("Step", exact=True).wait_for()
        assert page.get_by_label("Filter keys").input_value() == "optim.lr"  # what was typed stays


# --- reading ----------------------------------------------------------------------------------------------------


def test_a_tab_in_the_background_holds_no_connection(browser: Any, tmp_path: Path) -> None:
    """A browser has six for one server: with a stream in each tab, the seventh would never open."""
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true})"
    with serving(Options(tmp_path)) as viewer, tab(browser, viewer.url) as own:

        def streams(wanted: int) -> None:
            deadline = time.monotonic() + 10
            while len(viewer.watch._listeners) != wanted:
                assert time.monotonic() < deadline, len(viewer.watch._listeners)
                own.page.wait_for_timeout(30)

        page = own.open()
        streams(1)
        for hidden, wanted in (("true", 0), ("false", 1)):
            page.evaluate(f"{hide % hidden}; document.dispatchEvent(new Event('visibilitychange'))")
            streams(wanted)


def test_tokens_are_walked_by_keys_and_by_pointer_with_all_their_numbers(view: Tab) -> None:
    row = first_episode(view)
    page = view.open("tokens", run=RUN, id=row["id"], at=0)
    assert "never trained" in view.text(".token-detail")
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    detail = view.text(".token-detail")
    assert all(word in detail for word in ("Sampler log-prob", "Trainer log-prob", "Gap", "Entropy", "Policy version"))
    page.locator("[data-i='1']").hover()
    assert "2 of" in view.text(".token-detail")
    page.get_by_label("Mask").check()
    assert "in the train mask" in view.text(".token-legend") and "by=mask" in page.url


@pytest.mark.long
def test_thousands_of_tokens_stay_fast(view: Tab) -> None:
    page = view.open("tokens", run=RUN, id="long")
    assert page.locator("[data-i]").count() == MANY_TOKENS
    timed = """async act => { const began = performance.now(); await act(); await new Promise(requestAnimationFrame);
        return performance.now() - began }"""
    page.evaluate("document.querySelector('[data-i]').focus()")
    key = "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}))"
    walk = f"({timed})(async () => {{ for (let i = 0; i < 100; i++) {key} }})"
    assert min(page.evaluate(walk) for _ in range(3)) < 2000  # 20 ms a key; others use the machine too
    assert page.evaluate("document.activeElement.dataset.i") == "300"
    click = f"({timed})(async () => document.querySelector('[value=%s]').click())"
    tries = [page.evaluate(click % colouring) for colouring in ("logprob", "mask", "logprob")]  # each colours anew
    assert min(tries) < 1000, tries


def test_the_exported_file_opens_alone(browser: Any, view: Tab, tmp_path: Path) -> None:
    page = view.open("trajectory", run=RUN, id="harm")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export").click()
    file = tmp_path / "alone.html"
    download.value.save_as(file)
    with tab(browser, file.as_uri()) as alone:
        requests: list[str] = []
        alone.page.on("request", lambda request: requests.append(request.url))
        alone.page.goto(file.as_uri())
        assert "onerror" in alone.text("body") and alone.harmed() is None
        assert requests == [file.as_uri()]


# --- harm -------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_harmful_trajectory_is_text_everywhere(view: Tab) -> None:
    view.open("trajectory", run=RUN, id="harm")
    text = view.text()
    assert 'onerror="window.harmed=1"' in text and "red" in text and "\x1b" not in text
    assert "⟨U+202E⟩" in text and "␀" in text  # what cannot be seen is named
    assert len(text) < 400_000  # two megabytes on a line are not drawn unasked
    view.page.get_by_role("button", name=re.compile("Fetch the rest")).first.click()
    view.page.wait_for_selector("button:has-text('Fetch more')")
    task = next(row["task"] for row in view.episodes(run=RUN, source="step_0000") if row["id"] == "harm")
    for route, values in {
        "tokens": {"run": RUN, "id": "harm"},
        "list": {"run": RUN, "q": "onerror"},
        "group": {"run": RUN, "source": "step_0000", "task": task},
        "run": {"run": RUN, "step": 0},
        "": {},
    }.items():
        view.open(route, **values)
        view.page.wait_for_timeout(100)
        assert (
            view.harmed() is None and view.page.locator("main iframe, main script, main style, main img").count() == 0
        )
    assert view.seen.dialogs == []


def test_markup_of_the_highlighter_is_kept_to_spans(view: Tab) -> None:
    page = view.open()
    markup = page.evaluate(
        """async html => {
            const { highlighted } = await import("/static/highlight.js");
            const made = highlighted(html, "");
            document.body.append(made);
            return made.innerHTML;
        }""",
        f'<span class="k" onclick="window.harmed=3">if</span><b>{HARM}</b><span style="x">z</span>',
    )
    assert markup.startswith('<span class="k">if</span>') and markup.endswith("<span>z</span>")
    assert not re.search(r"<(?!/?span)|onerror=|onclick|style=", markup) and view.harmed() is None
    page.wait_for_timeout(100)
    page.evaluate("new Promise(requestAnimationFrame)")  # behind what was noted, on the same way
    page.wait_for_timeout(100)
    view.seen.blocked.clear()  # some versions note at parsing that the policy would not let the handlers run


def test_a_broken_file_is_shown_as_what_it_is(view: Tab) -> None:
    view.open("trajectory", run=RUN, id="broken")
    assert "cannot be read" in view.text()
