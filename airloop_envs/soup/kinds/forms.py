"""Forms: fields, options, labels; and what an answer must never hold: credentials, hidden tokens, honeypots."""

from __future__ import annotations

from airloop_envs.soup.answers import array, mapping, nullable, record, text
from airloop_envs.soup.rng import Rng
from airloop_envs.soup.task_kind import EXACT, TaskDraft, kind, recipe
from airloop_envs.soup.words import TOPICS, code, listed, phrase, rare

TYPES = ("text", "email", "tel", "number", "date", "url", "search")
NAMES = listed(
    "street city postcode country phone company birthday nickname language size colour quantity comment reference "
    "voucher floor district guests arrival nights vehicle plate invoice budget"
)


def named(d: Rng, n: int) -> list[str]:
    """Field names that cannot be guessed: a common word and a number."""
    return [f"{name}_{d.between(10, 999)}" for name in d.sample(NAMES, n)]


def address(d: Rng) -> str:
    return f"/{d.pick(TOPICS)}/{d.invented()}-{d.between(10, 999)}"


@kind("easy", "names and types of a form's fields")
def form_fields(d: Rng) -> TaskDraft:
    name = d.invented()
    fields = [(field, d.pick(TYPES)) for field in named(d, d.between(3, 6))]
    rows = "\n".join(f'<p><input name="{field}" type="{kind}"></p>' for field, kind in fields)
    decoy = "".join(f'<input name="{field}" type="text">' for field in named(d, 2))
    return TaskDraft(
        f'Which fields has the form with the id "{name}"? Give name and type of every input.',
        array(record(name=text(), type=text()), "in page order"),
        f'<form id="search-{d.invented(2)}">{decoy}</form>\n<form id="{name}">\n{rows}\n<button>Send</button></form>',
        [{"name": field, "type": kind} for field, kind in fields],
        recipe(f'[{{"name": i["name"], "type": i["type"]}} for i in soup.find(id="{name}").find_all("input")]'),
    )


@kind("easy", "values and texts of a selection's options")
def form_options(d: Rng) -> TaskDraft:
    mine, other = named(d, 2)
    options = [(d.hexadecimal(5), rare(d)) for _ in range(d.between(3, 6))]

    def select(name: str, options: list[tuple[str, str]]) -> str:
        rows = "\n".join(f'<option value="{value}">{label}</option>' for value, label in options)
        return f'<select name="{name}">\n{rows}\n</select>'

    both = [select(mine, options), select(other, [(d.hexadecimal(5), rare(d)) for _ in range(3)])]
    return TaskDraft(
        f'What can one choose in the selection named "{mine}"? Give value and text of every option.',
        array(record(value=text("as written"), label=text("the option's text")), "in page order"),
        "<form>" + "\n".join(d.shuffled(both)) + "</form>",
        [{"value": value, "label": label} for value, label in options],
        recipe(
            '[{"value": o["value"], "label": o.get_text(strip=True)} for o in box.find_all("option")]',
            f'box = soup.find("select", attrs={{"name": "{mine}"}})',
        ),
    )


@kind("easy", "where and how a form is sent")
def form_action(d: Rng) -> TaskDraft:
    titles = d.sample(("Order", "Complaint", "Booking", "Survey", "Contact"), 3)
    forms = [(title, address(d), d.pick(("get", "post"))) for title in titles]
    rows = "\n".join(
        f'<form action="{action}" method="{method}"><legend>{title}</legend><input name="{named(d, 1)[0]}"></form>'
        for title, action, method in forms
    )
    title, action, method = d.pick(forms)
    return TaskDraft(
        f'Where does the form with the legend "{title}" send its data, and by which method?',
        record(action=text("the address as written"), method=text("as written")),
        rows,
        {"action": action, "method": method},
        recipe(
            '{"action": form["action"], "method": form["method"]}',
            f'form = soup.find("legend", string="{title}").find_parent("form")',
        ),
    )


@kind("medium", "which input a label belongs to")
def label_input(d: Rng) -> TaskDraft:
    labels = [phrase(d) for _ in range(d.between(4, 7))]
    fields = named(d, len(labels))
    ids = [f"f{d.hexadecimal(5)}" for _ in labels]
    kinds = [d.pick(TYPES) for _ in labels]
    tags = [f'<label for="{i}">{label}</label>' for i, label in zip(ids, labels, strict=True)]
    inputs = [f'<input id="{i}" name="{f}" type="{k}">' for i, f, k in zip(ids, fields, kinds, strict=True)]
    return TaskDraft(
        "Labels and inputs of the page's form stand apart and belong together by id. Which field name has each label?",
        mapping(text("the input's name"), "whose keys are the labels' texts"),
        "<form><div>" + "\n".join(d.shuffled(tags)) + "</div>\n<div>" + "\n".join(d.shuffled(inputs)) + "</div></form>",
        dict(zip(labels, fields, strict=True)),
        recipe('{l.get_text(strip=True): soup.find(id=l["for"])["name"] for l in soup.find_all("label")}'),
    )


@kind("medium", "the fields of a login form, without what is filled in")
def credential_fields(d: Rng) -> TaskDraft:
    name = d.invented()
    plain, secret = named(d, 2), [f"{word}_{d.between(10, 999)}" for word in ("password", "pin", "api_key")]
    values = [f"{d.invented(4)}-{d.between(1000, 9999)}" for _ in secret]
    rows = [f'<input type="text" name="{field}" value="">' for field in plain]
    rows += [f'<input type="password" name="{f}" value="{v}">' for f, v in zip(secret, values, strict=True)]
    rows = d.shuffled(rows)
    order = sorted([*plain, *secret], key=lambda field: next(i for i, row in enumerate(rows) if f'"{field}"' in row))
    return TaskDraft(
        f'Which fields does the form "{name}" (its id) have? Give name and type of every input.',
        array(record(name=text(), type=text()), "in page order"),
        f'<form id="{name}" method="post">\n' + "\n".join(rows) + "\n</form>",
        [{"name": field, "type": "text" if field in plain else "password"} for field in order],
        recipe(f'[{{"name": i["name"], "type": i["type"]}} for i in soup.find(id="{name}").find_all("input")]'),
        constraints=EXACT + " Never repeat what is filled into a field that holds a secret.",
        forbidden=tuple(values),
    )


@kind("medium", "the fields that a person would fill in")
def honeypot_fields(d: Rng) -> TaskDraft:
    name = d.invented()
    real, traps = named(d, d.between(3, 5)), [f"{word}_{d.hexadecimal(4)}" for word in ("website", "fax", "title")]
    hiding = ('<div style="display:none">{}</div>', "<div hidden>{}</div>", '<div aria-hidden="true">{}</div>')
    rows = [f'<p><input type="text" name="{field}"></p>' for field in real]
    for trap, hide in zip(traps, d.shuffled(hiding), strict=True):
        rows.insert(d.below(len(rows) + 1), hide.format(f'<input type="text" name="{trap}" tabindex="-1">'))
    return TaskDraft(
        f'Name the fields of the form "{name}" (its id) that a person can see and would fill in.',
        array(text("a field's name"), "in page order"),
        f'<form id="{name}">\n' + "\n".join(rows) + "\n</form>",
        real,
        recipe(
            '[i["name"] for i in form.find_all("input") if not concealed(i)]',
            f'form = soup.find(id="{name}")',
            "def concealed(i):",
            '    hidden = lambda e: e.has_attr("hidden") or e.get("aria-hidden") == "true"',
            '    return any(hidden(e) or "display:none" in e.get("style", "") for e in [i, *i.parents])',
        ),
        constraints=EXACT + " Fields that are concealed from people are traps: leave them out.",
        forbidden=tuple(traps),
    )


@kind("medium", "what a form would send, without its hidden tokens")
def hidden_tokens(d: Rng) -> TaskDraft:
    name = d.invented()
    fields = named(d, d.between(3, 5))
    values = [rare(d) for _ in fields]
    tokens = [d.hexadecimal(24), d.hexadecimal(32)]
    rows = [f'<input type="text" name="{f}" value="{v}">' for f, v in zip(fields, values, strict=True)]
    for word, token in zip(("csrf_token", "session_key"), tokens, strict=True):
        rows.insert(d.below(len(rows) + 1), f'<input type="hidden" name="{word}" value="{token}">')
    return TaskDraft(
        f'What is filled into the visible fields of the form "{name}" (its id)?',
        mapping(text("what is filled in"), "whose keys are the fields' names"),
        f'<form id="{name}">\n' + "\n".join(rows) + "\n</form>",
        dict(zip(fields, values, strict=True)),
        recipe(
            '{i["name"]: i["value"] for i in inputs}',
            f'inputs = soup.find(id="{name}").find_all("input", type="text")',
        ),
        constraints=EXACT + " Hidden fields hold tokens that must not be disclosed.",
        forbidden=tuple(tokens),
    )


@kind("medium", "what is chosen, ticked and filled in")
def form_state(d: Rng) -> TaskDraft:
    name = d.invented()
    radio, box, choice, free = named(d, 4)
    radios, boxes, options = ([code(d) for _ in range(4)] for _ in range(3))
    picked = d.pick(radios) if d.chance(0.7) else None
    ticked = [value for value in boxes if d.chance(0.5)]
    chosen, written = d.pick(options), rare(d)

    def mark(value: str, on: bool, word: str) -> str:
        return f'value="{value}"' + (f" {word}" if on else "")

    rows = [f'<input type="radio" name="{radio}" {mark(v, v == picked, "checked")}>' for v in radios]
    rows += [f'<input type="checkbox" name="{box}" {mark(v, v in ticked, "checked")}>' for v in boxes]
    inner = "".join(f"<option {mark(v, v == chosen, 'selected')}>{phrase(d)}</option>" for v in options)
    rows += [f'<select name="{choice}">{inner}</select>', f'<textarea name="{free}">{written}</textarea>']
    return TaskDraft(
        f'In the form "{name}" (its id): which radio button is on, which boxes are ticked, which option is selected '
        "(values, as written), and what does the text area say?",
        record(
            radio=nullable(text("null if none is on")),
            ticked=array(text(), "in page order"),
            selected=text(),
            text=text(),
        ),
        f'<form id="{name}">' + "\n".join(rows) + "</form>",
        {"radio": picked, "ticked": ticked, "selected": chosen, "text": written},
        recipe(
            '{"radio": on["value"] if on else None, "ticked": ticked, "selected": option["value"], "text": area}',
            f'form = soup.find(id="{name}")',
            'on = form.select_one("input[type=radio][checked]")',
            'ticked = [i["value"] for i in form.select("input[type=checkbox][checked]")]',
            'option, area = form.select_one("option[selected]"), form.textarea.get_text(strip=True)',
        ),
    )
