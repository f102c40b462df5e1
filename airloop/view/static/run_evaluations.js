// Evaluations on held-out tasks: means with their intervals, on one scale so that they can be compared by eye.

import { h } from "./dom.js";
import { interval, isNumber, number } from "./format.js";
import { link } from "./route.js";
import { extent, whisker } from "./sparkline.js";
import { dataTable } from "./table.js";

export function evaluationsPart(run, evaluations) {
  const rewards = evaluations.flatMap((one) => [one.reward?.low, one.reward?.high, one.reward?.mean]);
  const range = extent(rewards);
  const rows = evaluations.map((one) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, h("a", { href: link("list", { run, source: `evaluations/${one.name}` }) }, one.name)),
      h("td", { class: "num" }, number(one.step)),
      h("td", {}, one.split ?? "–"),
      h(
        "td",
        { class: "num" },
        number(one.episodes),
        one.lost ? h("span", { class: "warn" }, ` (${one.lost} lost)`) : null,
      ),
      h("td", { class: "num" }, interval(one.reward)),
      h("td", {}, whisker(one.reward, range, { width: 240 })),
    ),
  );
  const heads = [
    "Evaluation",
    "After step#",
    "Split",
    "Episodes#",
    "Reward, 95 % interval#",
    `${number(range[0])} to ${number(range[1])}`,
  ];
  return [h("h2", {}, "Evaluations"), dataTable("Evaluations", heads, rows), measures(evaluations)];
}

/** Every other measure that has a mean, one row each. */
function measures(evaluations) {
  const hasMean = (value) => value && typeof value === "object" && isNumber(value.mean);
  const names = [
    ...new Set(evaluations.flatMap((one) => Object.keys(one).filter((key) => key !== "reward" && hasMean(one[key])))),
  ].sort();
  if (!names.length) return null;
  const rows = names.map((name) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, name.replaceAll("_", " ")),
      evaluations.map((one) => h("td", { class: "num" }, interval(one[name]))),
    ),
  );
  const heads = ["Measure", ...evaluations.map((one) => `${one.name}#`)];
  return [h("h2", { class: "next" }, "All measures"), dataTable("All measures", heads, rows)];
}
