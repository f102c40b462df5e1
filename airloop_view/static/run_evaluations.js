// Evaluations on held-out tasks: means with their intervals, on one scale so that they can be compared by eye.

import { h } from "./dom.js";
import { interval, isNumber, number } from "./format.js";
import { link } from "./route.js";
import { extent, whisker } from "./sparkline.js";
import { dataTable } from "./table.js";

export function evaluationsPart(run, evaluations) {
  const name = evaluations.find((one) => one.success_name)?.success_name;
  const first = name ? "success" : "reward"; // what the picture shows
  const range = extent(evaluations.flatMap((one) => [one[first]?.low, one[first]?.high, one[first]?.mean]));
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
      name && h("td", { class: "num" }, interval(one.success)),
      h("td", {}, whisker(one[first], range, { width: 240 })),
      h("td", { class: "num" }, interval(one.reward)),
    ),
  );
  const heads = [
    "Evaluation",
    "After step#",
    "Split",
    "Episodes#",
    name && `${name}, 95 % interval#`,
    `${number(range[0])} to ${number(range[1])}`,
    "Reward, 95 % interval#",
  ].filter(Boolean);
  return [h("h2", {}, "Evaluations"), dataTable("Evaluations", heads, rows), measures(evaluations)];
}

/** Every other measure that has a mean, one row each. */
function measures(evaluations) {
  const hasMean = (value) => value && typeof value === "object" && isNumber(value.mean);
  const names = [
    ...new Set(
      evaluations.flatMap((one) =>
        Object.keys(one).filter((key) => !["success", "reward", one.success_name].includes(key) && hasMean(one[key])),
      ),
    ),
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
