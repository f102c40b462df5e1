// The time line of a run: success by step, or the reward where success is not known, alarms at theirs, a slider, and below it the groups of the chosen step.

import { get } from "./api.js";
import { h, picture, replace, svg } from "./dom.js";
import { count, isNumber, number, percent, signed } from "./format.js";
import { link } from "./route.js";
import { sourceOf } from "./source.js";
import { dots, extent } from "./sparkline.js";
import { dataTable } from "./table.js";

const WAIT_MS = 120; // a slider that is being dragged asks for nothing
const [PAGE, MOST] = [500, 4000]; // rows of one answer, and of a step
const [WIDTH, HEIGHT] = [1000, 46];

export class StepPanel {
  #values = new Map();
  #valuesOf = null;
  #what = "reward";
  #timer = null;
  #asked = 0;

  constructor(run, data, step, life, onPick) {
    Object.assign(this, { run, data, life, onPick });
    this.steps = data.steps;
    this.step = this.steps.includes(step) ? step : null;
    this.line = h("div", { class: "timeline" });
    this.slider = h("input", {
      type: "range",
      "aria-label": "Step",
      step: 1,
      oninput: () => this.choose(this.steps[Number(this.slider.value)]),
    });
    this.title = h("h2");
    this.groups = h("div", { class: "groups", "aria-live": "off" });
    this.element = h(
      "section",
      { class: "card steps", "aria-label": "Time line" },
      h("div", { class: "head" }, this.title),
      this.line,
      this.slider,
      this.groups,
    );
    this.#draw();
    if (this.step !== null) this.#fetch();
  }

  update(data) {
    const wasLast = this.step !== null && this.step === this.steps.at(-1);
    this.data = data;
    this.steps = data.steps;
    if (wasLast && this.steps.at(-1) !== this.step)
      this.choose(this.steps.at(-1)); // who watches the last step goes with it
    else this.#draw();
  }

  move(by) {
    const at = this.step === null ? (by > 0 ? -1 : this.steps.length) : this.steps.indexOf(this.step);
    const next = this.steps[Math.max(0, Math.min(this.steps.length - 1, at + by))];
    if (next !== undefined) this.choose(next);
  }

  choose(step) {
    if (!this.steps.includes(step)) return;
    this.step = step;
    this.#draw();
    this.onPick(step);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#fetch(), WAIT_MS);
  }

  #value(step) {
    if (this.#valuesOf !== this.data) {
      const named = (name) => this.data.curves?.find((one) => one.name === name);
      const curve = named("success") ?? named("reward");
      this.#what = curve?.name === "success" ? (this.data.results?.success_name ?? "success") : "reward";
      this.#values = new Map(curve?.x.map((x, i) => [x - 1, curve.y[i]]));
      this.#valuesOf = this.data;
    }
    return this.#values.get(step) ?? null;
  }

  /** "correct 36%", "reward 0.31" */
  #said(step) {
    const value = this.#value(step);
    return `${this.#what} ${this.#what === "reward" ? number(value) : percent(value)}`;
  }

  #draw() {
    const { steps, step } = this;
    this.slider.min = 0;
    this.slider.max = steps.length - 1;
    this.slider.value = step === null ? steps.length - 1 : steps.indexOf(step);
    this.slider.setAttribute(
      "aria-valuetext",
      step === null ? "no step chosen" : `step ${step + 1}, ${this.#said(step)}`,
    );
    const last = steps.at(-1) + 1;
    const open = { run: this.run, source: sourceOf(step ?? 0) };
    replace(
      this.title,
      step === null
        ? [
            "Steps 1 to ",
            number(last),
            h("span", { class: "muted" }, " – move the slider, or press j and k, to read a step’s groups"),
          ]
        : [
            `Step ${step + 1} of ${last}`,
            h("span", { class: "muted" }, `  ${this.#said(step)}  `),
            h("a", { href: link("list", open) }, "its trajectories"),
          ],
    );
    replace(this.line, this.#picture(), this.#alarmLinks());
    if (step === null) replace(this.groups);
  }

  #x(step, at = this.steps.indexOf(step)) {
    const span = Math.max(1, this.steps.length - 1);
    return 8 + ((WIDTH - 16) * (at < 0 ? Math.min(span, Math.max(0, step)) : at)) / span;
  }

  #picture() {
    const values = this.steps.map((step) => this.#value(step));
    const [low, high] = extent(values);
    const y = (value) => HEIGHT - 6 - ((value - low) / (high - low || 1)) * (HEIGHT - 14);
    const points = values
      .map((value, i) => isNumber(value) && `${this.#x(this.steps[i], i).toFixed(1)} ${y(value).toFixed(1)}`)
      .filter(Boolean); // of very many steps, the curve has not all: a line from one it has to the next
    const d = points.length ? `M${points.join("L")}` : "";
    const marks = this.#alarms().map((alarm) =>
      svg("line", { x1: this.#x(alarm.step), x2: this.#x(alarm.step), y1: 0, y2: HEIGHT, class: "alarm-line" }),
    );
    const here =
      this.step !== null &&
      svg("line", { x1: this.#x(this.step), x2: this.#x(this.step), y1: 0, y2: HEIGHT, class: "here" });
    const image = picture(
      WIDTH,
      HEIGHT,
      `${this.#what} over ${count(this.steps.length, "step")}, from ${number(values.find(isNumber))} to ${number(values.findLast(isNumber))}`,
      marks,
      here,
      svg("path", { d, class: "trend" }),
    );
    image.setAttribute("preserveAspectRatio", "none");
    image.removeAttribute("width");
    return image;
  }

  #alarms() {
    return (this.data.alarms ?? []).filter((alarm) => alarm.event !== "cleared");
  }

  #alarmLinks() {
    return this.#alarms().map((alarm) => {
      const name = `Alarm at step ${alarm.step + 1}: ${alarm.name}`;
      const mark = h(
        "a",
        {
          class: "alarm-mark",
          href: link("run", { run: this.run, step: this.step, part: "alarms" }),
          "aria-label": name,
          title: `${name}. ${alarm.seen ?? ""}`,
        },
        "▲",
      );
      mark.style.setProperty("left", `${(100 * this.#x(alarm.step)) / WIDTH}%`);
      return mark;
    });
  }

  async #fetch() {
    const asked = ++this.#asked;
    const source = sourceOf(this.step);
    try {
      const rows = [];
      for (let total = 1; rows.length < Math.min(total, MOST);) {
        const wanted = { run: this.run, source, sort: "task", offset: rows.length, limit: PAGE };
        const page = await get("/api/trajectories", wanted, this.life.signal);
        total = page.rows.length ? page.total : 0;
        rows.push(...page.rows);
      }
      if (asked === this.#asked) replace(this.groups, groupTable(this.run, source, rows));
    } catch (error) {
      if (error.name !== "AbortError") replace(this.groups, h("p", { class: "muted" }, error.message));
    }
  }
}

function groupTable(run, source, rows) {
  if (!rows.length) return h("p", { class: "muted" }, "No trajectory of this step is on disk yet.");
  const range = extent(rows.map((row) => row.reward));
  // A task may come twice in a step, as two groups, each with its own baseline.
  const groups = Map.groupBy(rows, (row) => `${row.group ?? ""} ${row.task}`);
  const lines = [...groups.values()].map((members) => {
    const { task, group: place } = members[0];
    const rewards = members.map((row) => row.reward);
    const known = rewards.filter(isNumber);
    const mean = known.reduce((a, b) => a + b, 0) / known.length;
    const spread = Math.sqrt(known.reduce((sum, value) => sum + (value - mean) ** 2, 0) / known.length);
    const fates = [...new Set(members.map((row) => row.fate).filter(Boolean))].join(", ");
    return h(
      "tr",
      {},
      h(
        "th",
        { scope: "row", class: "name" },
        task
          ? h("a", { href: link("group", { run, source, task, place }) }, task)
          : h("a", { href: link("list", { run, source, ending: "unreadable" }) }, "files that cannot be read"),
      ),
      h("td", { class: "num" }, number(members.length)),
      h("td", { class: "num" }, known.length ? `${number(mean)} ± ${number(spread)}` : number(null)),
      h("td", {}, dots(rewards, range)),
      h("td", { class: "num" }, advantages(members)),
      h("td", { class: "muted" }, fates),
    );
  });
  return dataTable("Groups of this step", ["Group", "Episodes#", "Reward#", "Each", "Advantages#", "Fate"], lines);
}

function advantages(members) {
  const known = members.map((row) => row.advantage).filter(isNumber);
  return known.length ? `${signed(Math.min(...known), 2)} … ${signed(Math.max(...known), 2)}` : number(null);
}
