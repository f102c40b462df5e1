// The overlay behind `?`: keys of this page and of all, and the switch for single keys.

import { h, replace } from "./dom.js";
import { knownKeys, setSingleKeys, singleKeys } from "./keys.js";

const WORDS = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", Escape: "Esc" };
let dialog;

export function openHelp() {
  if (!dialog) {
    dialog = h("dialog", { class: "help", "aria-labelledby": "help-title" });
    document.body.append(dialog);
  }
  replace(
    dialog,
    h("h2", { id: "help-title" }, "Keys"),
    h(
      "table",
      { class: "plain" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Key"), h("th", { scope: "col" }, "What it does"))),
      h("tbody", {}, knownKeys().map(row)),
    ),
    h(
      "label",
      { class: "check" },
      h("input", { type: "checkbox", checked: singleKeys(), onchange: (event) => setSingleKeys(event.target.checked) }),
      " Single-letter keys are on",
    ),
    h(
      "p",
      { class: "muted" },
      "Every page, step, trajectory, turn and token has its own address: copy it from the bar.",
    ),
    h("form", { method: "dialog" }, h("button", { type: "submit", autofocus: true }, "Close")),
  );
  dialog.showModal();
}

function row(key) {
  const names = key.keys.map((one) => h("kbd", {}, WORDS[one] ?? one));
  const parts = names.flatMap((name, i) => (i ? [" or ", name] : [name]));
  return h("tr", {}, h("th", { scope: "row" }, parts), h("td", {}, key.says));
}
