"""How an exported episode looks: light and dark, and the tokens' colours for each choice."""

from __future__ import annotations

import functools

# What tokens can be coloured by: the class's beginning, and the button's text.
BY = {
    "adv": "advantage",
    "lp": "log-prob",
    "gap": "sampler–trainer gap",
    "entropy": "entropy",
    "mask": "trained or not",
}
LEVELS = 4
BASE = """
:root { color-scheme: light dark; --back: #fff; --fore: #1b1f24; --soft: #57606a; --line: #d0d7de; --block: #f6f8fa;
  --plus: 26, 127, 55; --minus: 207, 34, 46; --size: 9, 105, 218; }
@media (prefers-color-scheme: dark) { :root { --back: #0d1117; --fore: #e6edf3; --soft: #9198a1; --line: #30363d;
  --block: #161b22; --plus: 63, 185, 80; --minus: 248, 81, 73; --size: 88, 166, 255; } }
body { margin: 0; background: var(--back); color: var(--fore); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin-top: 2rem; }
h2 b { font-size: .85rem; border: 1px solid var(--line); border-radius: 1rem; padding: 0 .5rem; }
h3 { font-size: .85rem; color: var(--soft); margin: 1rem 0 .25rem; } small { color: var(--soft); font-weight: 400; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; }
dt { color: var(--soft); } dd { margin: 0; }
pre { background: var(--block); border: 1px solid var(--line); border-radius: 6px; padding: .6rem .8rem; margin: 0;
  white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; font: 13px/1.5 ui-monospace, monospace; }
.thought { font-style: italic; } .output { border-left: 4px solid var(--line); }
.added { background: rgba(var(--plus), .18); } .removed { background: rgba(var(--minus), .18); }
.place { color: var(--soft); }
summary { cursor: pointer; color: var(--soft); font-size: .85rem; }
fieldset { border: 1px solid var(--line); margin: 0 0 .8rem; }
label { margin: 0 1rem 0 .25rem; } .tokens .mask0 { opacity: .62; }
.part::before { content: "·"; }
"""


@functools.cache
def style() -> str:
    from pygments.formatters import HtmlFormatter

    light = HtmlFormatter(style="default").get_style_defs(".code")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".code")
    code = f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}\n.code {{ background: var(--block); }}\n"
    return BASE + code + "\n".join(_colours())


def _colours() -> list[str]:
    rules = []
    for key in BY:
        chosen = f"section:has(#by-{key}:checked) .tokens"
        if key == "mask":
            rules.append(f"{chosen} .mask1 {{ background: rgba(var(--size), .3); }}")
            continue
        for level in range(1, LEVELS + 1):
            for sign, colour in (("p", "--plus"), ("n", "--minus")):
                hue = colour if key in ("adv", "gap") else "--size"
                rules.append(f"{chosen} .{key}{sign}{level} {{ background: rgba(var({hue}), {level * 0.13:.2f}); }}")
    return rules
