// What became of every sampled token: areas that add up to all of them, and the sums.

import { h } from "./dom.js";
import { number, percent } from "./format.js";
import { Chart } from "./plot.js";
import { dataTable } from "./table.js";

const MEANING = {
  trained: "has a part in the loss",
  zero_advantage: "its group scored alike, so nothing can be learned from it",
  filtered: "of a group that difficulty filtering left out",
  infra_error: "of an attempt that the machinery spoilt",
  stale: "its probability is too far from that at sampling",
  truncated: "sampled, but in no sequence: a reply that was cut off",
};

export function ledgerPart(ledger, marks, life) {
  const columns = Object.entries(ledger.columns);
  const sums = columns.map(([, values]) => values.reduce((sum, value) => sum + (value ?? 0), 0));
  const all = sums.reduce((a, b) => a + b, 0);
  const present = columns.filter((_, i) => sums[i] > 0);
  const series = present.map(([name, y]) => ({ name: name.replaceAll("_", " "), x: ledger.x, y }));
  const chart = new Chart(
    { title: "Tokens by what became of them", unit: "tokens", series, marks, stacked: true },
    life,
    { large: true },
  );
  const rows = columns.map(([name], i) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, name.replaceAll("_", " ")),
      h("td", { class: "num" }, number(sums[i])),
      h("td", { class: "num" }, all ? percent(sums[i] / all) : "–"),
      h("td", { class: "muted" }, MEANING[name] ?? ""),
    ),
  );
  return [
    h("h2", {}, "Tokens by what became of them"),
    h("div", { class: "card" }, chart.element),
    dataTable("Sums over all steps", ["Column", "Tokens#", "Share#", "What it means"], rows),
  ];
}
