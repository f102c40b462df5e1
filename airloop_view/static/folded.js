// Long text starts folded: its beginning is in sight, the rest a click or a key away. What was cut by the server is
// fetched only when it is asked for.

import { get } from "./api.js";
import { h } from "./dom.js";
import { bytes, number } from "./format.js";
import { visible } from "./text.js";

const LONGEST_LINE = 2000; // characters of one line that are drawn before the rest is asked for

/** `body` with the class "folded" until it is opened, if it has more than `most` lines. */
export function folded(body, lines, most = 16) {
  if (lines <= most + 4) return body;
  body.classList.add("folded");
  body.style.setProperty("--lines", most);
  const button = h(
    "button",
    { type: "button", class: "unfold", "aria-expanded": "false" },
    `Show all ${number(lines)} lines`,
  );
  button.addEventListener("click", () => {
    const open = body.classList.toggle("folded");
    button.setAttribute("aria-expanded", String(!open));
    button.textContent = open ? `Show all ${number(lines)} lines` : "Fold";
  });
  return h("div", { class: "foldable" }, body, button);
}

/** Text of a tool or a message. `more`: {cut, run, id, part} when the server holds more than it sent. */
export function longText(text, { most = 16, more = null, className = "output" } = {}) {
  const shown = visible(text);
  const begins = shortened(shown);
  const body = h("pre", { class: className }, begins);
  const whole = begins.length < shown.length ? withRest(body, shown) : folded(body, lineCount(shown), most);
  return more?.cut ? h("div", { class: "foldable" }, whole, fetcher(body, more)) : whole;
}

export function lineCount(text) {
  return text.split("\n").length;
}

/** Megabytes on one line: its beginning, then the whole on demand. */
function shortened(text) {
  if (text.length < LONGEST_LINE * 20 && !text.split("\n").some((line) => line.length > LONGEST_LINE)) return text;
  const cut = text
    .split("\n")
    .map((line) => (line.length > LONGEST_LINE ? `${line.slice(0, LONGEST_LINE)} …` : line))
    .join("\n");
  return cut.slice(0, LONGEST_LINE * 20);
}

function withRest(body, text) {
  body.classList.add("folded");
  body.style.setProperty("--lines", 16);
  const button = h(
    "button",
    { type: "button", class: "unfold", "aria-expanded": "false" },
    `Show all ${bytes(text.length)}`,
  );
  button.addEventListener("click", () => {
    body.textContent = text;
    body.classList.remove("folded");
    button.remove();
  });
  return h("div", { class: "foldable" }, body, button);
}

/** The server gives a long text in pieces; each click brings one more. */
function fetcher(body, { cut, run, id, part }) {
  const button = h("button", { type: "button", class: "unfold" }, `Fetch the rest: ${bytes(cut)} in all`);
  let next = 0;
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      const piece = await get("/api/text", { run, id, part, offset: next });
      body.classList.remove("folded");
      body.textContent = (next ? body.textContent : "") + visible(piece.text);
      next = piece.next;
      button.textContent = `Fetch more: ${bytes(piece.offset + piece.text.length)} of ${bytes(piece.total)}`;
      if (!next) button.remove();
    } catch (error) {
      button.textContent = `${error.message} Try again`;
    }
    button.disabled = false;
  });
  return button;
}
