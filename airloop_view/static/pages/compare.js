// Two or more runs over one another: their curves, their results, and what their configs do differently.

import { get, unlessExpected } from "../api.js";
import { Curves } from "../curves.js";
import { h } from "../dom.js";
import { duration, interval, money, number, percent } from "../format.js";
import { link } from "../route.js";
import { statusChip } from "../status.js";
import { dataTable } from "../table.js";

const MOST = 8; // more lines than this in one picture tell nothing

export const identity = (params) => params.getAll("run").join("\n");

export async function open(params, life) {
  const ids = [...new Set(params.getAll("run"))].slice(0, MOST);
  if (ids.length < 2)
    throw Object.assign(new Error("An overlay needs two runs or more."), { fix: "Choose them in the table of runs." });
  const all = await Promise.all(ids.map((run) => get("/api/run", { run }, life.signal)));
  const names = distinct(
    all.map((data) => data.results.name),
    ids,
  );
  const curves = new Curves(overlaid(all, names), life);
  life.onChange(async (changed) => {
    const stale = ids.flatMap((id, i) => (changed === null || changed.has(id) ? [i] : []));
    try {
      await Promise.all(stale.map(async (i) => (all[i] = await get("/api/run", { run: ids[i] }, life.signal))));
      if (stale.length) curves.update(overlaid(all, names));
    } catch (error) {
      unlessExpected(error);
    }
  });
  return {
    title: `${names.length} runs overlaid`,
    nodes: [
      h("div", { class: "head" }, h("h1", {}, "Overlay")),
      legend(ids, names, all),
      h("div", { class: "beside" }, h("section", {}, results(names, all)), h("section", {}, differences(names, all))),
      h("h2", { class: "next" }, "Curves"),
      all.some((data) => data.curves?.length)
        ? curves.element
        : h("p", { class: "notice" }, "None of these has curves: they are not training runs."),
    ],
  };
}

/** Which line is which: colour, dash and name. A click on × takes a run out. */
function legend(ids, names, all) {
  const entries = names.map((name, i) => {
    const rest = ids.filter((id) => id !== ids[i]);
    const out =
      rest.length > 1
        ? h("a", { class: "out", href: link("compare", { run: rest }), "aria-label": `Take ${name} out` }, "×")
        : null;
    return h(
      "li",
      { class: `series series-${i % MOST}` },
      h("span", { class: "swatch", "aria-hidden": "true" }),
      h("a", { href: link("run", { run: ids[i] }) }, name),
      statusChip(all[i].results),
      out,
    );
  });
  return h("ul", { class: "legend", "aria-label": "Runs in this overlay" }, entries);
}

function overlaid(all, names) {
  const specs = new Map();
  all.forEach((data, i) => {
    for (const curve of data.curves ?? []) {
      const spec = specs.get(curve.name) ?? {
        key: curve.name,
        group: curve.group,
        title: curve.label,
        about: curve.text,
        unit: curve.unit,
        series: [],
      };
      spec.series.push({ name: names[i], x: curve.x, y: curve.y, colour: i });
      specs.set(curve.name, spec);
    }
  });
  return [...specs.values()];
}

function results(names, all) {
  const rows = [
    ["Steps", (r) => (r.max_steps ? `${r.steps ?? 0} / ${r.max_steps}` : number(r.steps))],
    ["Success is", (r) => r.success_name ?? "–"],
    ["Success, first", (r) => percent(r.success_first)],
    ["Success, last", (r) => percent(r.success_last)],
    ["Held-out success, before", (r) => interval(r.eval_success_before)],
    ["Held-out success, after", (r) => interval(r.eval_success_after)],
    ["Reward, first", (r) => number(r.reward_first)],
    ["Reward, last", (r) => number(r.reward_last)],
    ["Held-out reward, before", (r) => interval(r.eval_before)],
    ["Held-out reward, after", (r) => interval(r.eval_after)],
    ["Tokens/s", (r) => number(r.tokens_per_second && Math.round(r.tokens_per_second))],
    ["Alarms", (r) => number(r.alarms)],
    ["Time", (r) => duration(r.seconds)],
    ["Cost", (r) => money(r.cost)],
  ];
  const shown = rows.filter(([, value]) => all.some((data) => !["–", ""].includes(value(data.results))));
  const lines = shown.map(([name, value]) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, name),
      all.map((data) => h("td", { class: "num" }, value(data.results))),
    ),
  );
  return [
    h("h2", {}, "Results"),
    dataTable("Results side by side", ["Result", ...names.map((name) => `${name}#`)], lines),
    h(
      "p",
      { class: "muted small" },
      "Whether a difference is more than chance: ",
      h("code", {}, "air compare A B"),
      " on their evaluations.",
    ),
  ];
}

function differences(names, all) {
  const configs = all.map((data) => new Map(data.config ?? []));
  const keys = [...new Set(configs.flatMap((config) => [...config.keys()]))].filter((key) => key !== "output_dir");
  const differing = keys.filter((key) => new Set(configs.map((config) => config.get(key) ?? "")).size > 1);
  if (!differing.length) return h("p", { class: "notice" }, "Their configs are the same.");
  const rows = differing.map((key) =>
    h(
      "tr",
      {},
      h("th", { scope: "row", class: "mono" }, key),
      configs.map((config) => h("td", { class: "long" }, config.get(key) ?? "not set")),
    ),
  );
  return [
    h("h2", {}, "What their configs do differently"),
    dataTable("What their configs do differently", ["Key", ...names], rows),
  ];
}

/** Runs in different directories may have one name. */
function distinct(names, ids) {
  return names.map((name, i) => (names.indexOf(name) === names.lastIndexOf(name) ? name : ids[i]));
}
