"""The looks of pages: how a shop, a newspaper, an encyclopedia … name and order their boilerplate.

Every class and id of the boilerplate begins with its style's prefix, so that it never meets a task's own part by
accident; decoys are put on purpose, by the kinds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Style:
    name: str
    prefix: str
    site: tuple[str, ...]  # endings of the site's name
    menu: tuple[str, ...]
    blocks: tuple[str, ...]  # boilerplate that fills the page, by function name in boilerplate.py
    wrapper: tuple[str, str]  # around the task's part
    doctype: str
    joiner: str = "-"  # between prefix and class name: news-card, shop__card, wkCard
    columns: bool = True  # a sidebar


STYLES = (
    Style(
        "shop",
        "shp",
        ("Supply", "Store", "Outfitters", "Wares"),
        ("New", "Tools", "Kitchen", "Garden", "Travel", "Sale", "Basket", "Account"),
        ("cards", "newsletter", "reviews", "features", "cards"),
        ('<main class="shp__main"><div class="shp__container">', "</div></main>"),
        "<!DOCTYPE html>",
        joiner="__",
    ),
    Style(
        "news",
        "nws",
        ("Courier", "Herald", "Observer", "Gazette"),
        ("Front page", "Region", "Business", "Culture", "Sport", "Weather", "Letters", "Archive"),
        ("article", "teasers", "advert", "teasers", "newsletter"),
        ('<main class="nws-main"><article class="nws-story">', "</article></main>"),
        "<!doctype html>",
    ),
    Style(
        "reference",
        "wk",
        ("Reference", "Compendium", "Almanac", "Lexicon"),
        ("Contents", "Index", "Recent changes", "Help", "Community", "Tools", "Languages"),
        ("article", "contents", "article", "footnotes"),
        ('<div id="wk-content" role="main"><div class="wk-body">', "</div></div>"),
        "<!DOCTYPE html>",
    ),
    Style(
        "blog",
        "blg",
        ("Notes", "Journal", "Diary", "Workbench"),
        ("Home", "Posts", "Projects", "Reading", "About", "Contact"),
        ("article", "comments", "tags", "teasers"),
        ('<section class="blg-post"><div class="blg-entry">', "</div></section>"),
        "<!doctype html>",
        columns=False,
    ),
    Style(
        "forum",
        "frm",
        ("Board", "Forum", "Round Table", "Exchange"),
        ("Boards", "New posts", "Members", "Rules", "Search", "Log in"),
        ("comments", "comments", "tags", "features"),
        ('<div class="frm-thread"><div class="frm-posts">', "</div></div>"),
        '<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Transitional//EN" '
        '"http://www.w3.org/TR/xhtml1/DTD/xhtml1-transitional.dtd">',
    ),
    Style(
        "docs",
        "doc",
        ("Toolkit", "Library", "Engine", "Framework"),
        ("Guide", "Reference", "Examples", "Releases", "Search", "Source"),
        ("contents", "listing", "article", "listing"),
        ('<div class="doc-layout"><main class="doc-page">', "</main></div>"),
        "<!DOCTYPE html>",
    ),
    Style(
        "council",
        "gov",
        ("Council", "Borough", "District Office", "Harbour Authority"),
        ("Residents", "Business", "Planning", "Transport", "Waste", "Meetings", "Jobs", "Contact"),
        ("notices", "article", "features", "notices"),
        ('<main id="gov-main" class="gov-width"><div class="gov-grid">', "</div></main>"),
        '<!DOCTYPE HTML PUBLIC "-//W3C//DTD HTML 4.01//EN" "http://www.w3.org/TR/html4/strict.dtd">',
    ),
    Style(
        "dashboard",
        "app",
        ("Console", "Monitor", "Desk", "Control"),
        ("Overview", "Reports", "Alerts", "Team", "Billing", "Settings"),
        ("features", "notices", "cards", "listing"),
        ('<div class="appShell"><div class="appView">', "</div></div>"),
        "<!doctype html>",
        joiner="",
    ),
)
