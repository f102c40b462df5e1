// A file's change: a unified diff with the signs left in, so that it can be read without its colours.

import { h } from "./dom.js";
import { folded, longText } from "./folded.js";
import { visible } from "./text.js";

export function fileDiff({ path, diff, note, cut, part }, { run, id }) {
  const lines = visible(diff).replace(/\n$/, "").split("\n");
  const shown = lines.filter((line) => !/^(---|\+\+\+) /.test(line));
  const added = shown.filter((line) => line.startsWith("+")).length;
  const removed = shown.filter((line) => line.startsWith("-")).length;
  const body = h(
    "pre",
    { class: "diff" },
    shown.map((line) => h("span", { class: kind(line) }, `${line}\n`)),
  );
  return h(
    "figure",
    { class: "file" },
    h(
      "figcaption",
      {},
      h("code", {}, path),
      h("span", { class: "muted" }, ` ${added} added, ${removed} removed${note ? ` · ${note}` : ""}`),
    ),
    cut
      ? longText(diff, { most: 30, className: "diff", more: { cut, part, run, id } })
      : folded(body, shown.length, 30),
  );
}

function kind(line) {
  if (line.startsWith("+")) return "ins";
  if (line.startsWith("-")) return "del";
  return line.startsWith("@@") ? "hunk" : "same";
}
