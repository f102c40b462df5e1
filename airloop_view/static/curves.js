// Curves of one or more runs, in groups, as small multiples.

import { h } from "./dom.js";
import { Chart } from "./plot.js";

// What is read first stands first; what is looked up now and then is folded.
const ORDER = [
  "success",
  "reward",
  "task",
  "lengths",
  "endings",
  "entropy",
  "kl",
  "gradient",
  "gap",
  "throughput",
  "memory",
  "times",
  "other",
];
const FOLDED = new Set(["times", "other", "memory"]);
const TITLES = {
  success: "Success",
  reward: "Reward",
  task: "By task",
  lengths: "Lengths",
  endings: "Endings",
  entropy: "Entropy",
  kl: "KL divergence",
  gradient: "Gradient and update",
  gap: "Sampler–trainer gap",
  throughput: "Throughput",
  memory: "Memory",
  times: "Times",
  other: "Other",
};

/** `specs`: [{key, group, title, unit, series, …}] as plot.js takes them. */
export class Curves {
  #charts = new Map();
  #life;

  constructor(specs, life) {
    this.#life = life;
    this.note = h("p", { class: "muted", hidden: true }, "No curve has that in its name.");
    this.groups = this.#grouped(specs);
    this.element = h("div", { class: "curves" }, this.#filter(), this.note, this.groups);
  }

  update(specs) {
    for (const spec of specs) this.#charts.get(spec.key)?.update(spec);
    return specs.every((spec) => this.#charts.has(spec.key)); // false: a new curve has come, draw all anew
  }

  mark(at) {
    for (const chart of this.#charts.values()) chart.update({ at });
  }

  #grouped(specs) {
    const names = [...new Set(specs.map((spec) => spec.group))].sort((a, b) => place(a) - place(b));
    return names.map((name) => {
      const charts = specs
        .filter((spec) => spec.group === name)
        .map((spec) => {
          const chart = new Chart(spec, this.#life);
          chart.element.dataset.name = `${spec.title} ${spec.key} ${spec.about ?? ""}`.toLowerCase();
          this.#charts.set(spec.key, chart);
          return chart.element;
        });
      const summary = h(
        "summary",
        {},
        h("h2", {}, TITLES[name] ?? name),
        h("span", { class: "muted" }, ` ${charts.length}`),
      );
      return h(
        "details",
        { class: "curve-group", open: !FOLDED.has(name), data: { group: name } },
        summary,
        h("div", { class: "multiples" }, charts),
      );
    });
  }

  #filter() {
    const apply = (event) => this.#show(event.target.value.trim().toLowerCase());
    return h(
      "div",
      { class: "bar" },
      h("input", {
        type: "search",
        "aria-label": "Filter curves by name",
        placeholder: "Filter curves",
        oninput: apply,
      }),
    );
  }

  #show(wanted) {
    for (const group of this.groups) {
      const charts = [...group.querySelectorAll("figure.chart")];
      for (const chart of charts) chart.hidden = !chart.dataset.name.includes(wanted);
      group.hidden = charts.every((chart) => chart.hidden);
      group.open = wanted ? true : !FOLDED.has(group.dataset.group);
    }
    this.note.hidden = this.groups.some((group) => !group.hidden);
  }
}

function place(group) {
  const found = ORDER.indexOf(group);
  return found < 0 ? ORDER.length : found;
}
