// What the doctor found before the first step: what failed first, what passed and what was not looked at below.

import { h } from "./dom.js";
import { severityChip } from "./status.js";
import { dataTable } from "./table.js";

export function doctorPart(checks) {
  const of = (verdict) => checks.filter((check) => check.verdict === verdict);
  const troubles = [...of("fail"), ...of("warn")];
  const leftOut = checks.filter((check) => !check.verdict);
  const tally = ["fail", "warn", "pass"].map((verdict) => [verdict, of(verdict).length]).filter(([, n]) => n);
  return [
    h(
      "p",
      {},
      tally.flatMap(([verdict, n]) => [severityChip(verdict), ` ${n}  `]),
    ),
    troubles.map(trouble),
    of("pass").length > 0 &&
      folded(`${of("pass").length} passed`, "Seen", of("pass"), (check) => check.seen, !troubles.length),
    leftOut.length > 0 && folded(`${leftOut.length} not done`, "Why not", leftOut, (check) => check.not_done, false),
  ];
}

function trouble(check) {
  return h(
    "article",
    { class: "card" },
    h(
      "div",
      { class: "head" },
      h("h2", {}, check.title || check.name),
      severityChip(check.verdict),
      h("span", { class: "muted" }, check.id),
    ),
    h("p", {}, h("strong", {}, "Seen: "), check.seen),
    check.why && h("p", {}, h("strong", {}, "Why it matters: "), check.why),
    check.fix && h("p", {}, h("strong", {}, "What to do: "), check.fix),
  );
}

function folded(title, said, checks, saying, open) {
  const rows = checks.map((check) =>
    h(
      "tr",
      {},
      h("td", { class: "muted nowrap" }, check.id),
      h("th", { scope: "row" }, check.title || check.name),
      h("td", {}, saying(check)),
    ),
  );
  return h("details", { class: "card", open }, h("summary", {}, title), dataTable(title, ["Id", "Check", said], rows));
}
