// All runs in one table, live.

import { get, unlessExpected } from "../api.js";
import { h } from "../dom.js";
import { count, duration, exactly, interval, money, number, percent, spokenResult, when } from "../format.js";
import { link } from "../route.js";
import { SortableTable } from "../sortable.js";
import { sparkline } from "../sparkline.js";
import { statusChip } from "../status.js";

export const identity = () => "";

export async function open(_params, life) {
  const [{ runs }, about] = await Promise.all([get("/api/runs", {}, life.signal), get("/api/about", {}, life.signal)]);
  const page = new RunsPage(runs, about, life);
  return { title: "Runs", nodes: page.nodes() };
}

class RunsPage {
  #chosen = new Set();
  #wanted = "";
  #fetching = false;
  #again = false;

  constructor(runs, about, life) {
    this.runs = runs;
    this.about = about;
    this.life = life;
    this.table = new SortableTable({
      columns: this.#columns(),
      identity: (run) => run.id,
      label: "Runs",
      sortBy: "started",
    });
    this.overlay = h("a", { class: "button", "aria-disabled": "true" });
    this.summary = h("span", { class: "muted" });
    this.list = h("div");
    life.onChange((changed) => this.#refresh(changed));
    life.keys([
      { keys: ["j", "ArrowDown"], says: "next row", act: () => this.table.move(1) },
      { keys: ["k", "ArrowUp"], says: "previous row", act: () => this.table.move(-1) },
      {
        keys: ["x"],
        says: "choose the row for the overlay",
        act: () => document.activeElement.closest?.("tr")?.querySelector("input")?.click(),
      },
      { keys: ["o"], says: "overlay the chosen runs", act: () => this.overlay.click() },
    ]);
  }

  nodes() {
    this.#draw();
    const filter = (event) => {
      this.#wanted = event.target.value;
      this.#draw();
    };
    return [
      h("div", { class: "head" }, h("h1", {}, "Runs"), this.summary),
      h(
        "div",
        { class: "bar" },
        h("input", {
          type: "search",
          "aria-label": "Filter runs",
          placeholder: "Filter by name, task, model, status",
          size: 36,
          oninput: filter,
        }),
        this.overlay,
        h("a", { class: "button end", href: "#/list" }, "Search all trajectories"),
      ),
      this.list,
    ];
  }

  #draw() {
    const words = this.#wanted.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = this.runs.filter((run) => words.every((word) => searched(run).includes(word)));
    this.summary.textContent = `${count(this.runs.length, "run")}${shown.length < this.runs.length ? `, ${shown.length} shown` : ""}`;
    this.table.columns = this.#columns();
    this.table.show(shown);
    this.#drawOverlay();
    const content = this.runs.length
      ? shown.length
        ? this.table.element
        : noMatch(this.#wanted)
      : noRuns(this.about.dir);
    if (this.list.firstChild !== content) this.list.replaceChildren(content);
  }

  #drawOverlay() {
    const chosen = this.runs.filter((run) => this.#chosen.has(run.id)).map((run) => run.id);
    if (chosen.length > 1) {
      this.overlay.textContent = `Overlay ${chosen.length} runs`;
      this.overlay.setAttribute("href", link("compare", { run: chosen }));
      this.overlay.removeAttribute("aria-disabled");
      this.overlay.classList.add("strong");
    } else {
      this.overlay.textContent = "Choose two or more to overlay";
      this.overlay.removeAttribute("href");
      this.overlay.setAttribute("aria-disabled", "true");
      this.overlay.classList.remove("strong");
    }
  }

  #choose(run, on) {
    if (on) this.#chosen.add(run.id);
    else this.#chosen.delete(run.id);
    this.#drawOverlay();
  }

  #columns() {
    const column = (key, name, value, cell, more = {}) => ({ key, name, value, cell, ...more });
    const priced = this.runs.some((run) => run.cost !== null && run.cost !== undefined);
    const pick = (run) =>
      h("input", {
        type: "checkbox",
        "aria-label": `Choose ${run.name} for the overlay`,
        checked: this.#chosen.has(run.id),
        onchange: (event) => this.#choose(run, event.target.checked),
      });
    return [
      column("pick", "", null, pick, { sortable: false, head: h("span", { class: "unseen" }, "Choose") }),
      column("name", "Run", (run) => run.name, nameCell, { rowHead: true }),
      column(
        "status",
        "Status",
        (run) => run.status,
        (run) => (run.kind === "traj" ? number(null) : statusChip(run)),
      ),
      column(
        "task",
        "Task",
        (run) => run.task,
        (run) => cut(run.task, 22),
      ),
      column(
        "model",
        "Model",
        (run) => run.model,
        (run) => cut(shortModel(run.model), 26, run.model),
      ),
      column("steps", "Steps", (run) => run.steps, stepsCell, { num: true }),
      column("success", "Success", (run) => run.success_last, successCell, { num: true }),
      column("trend", "Trend", null, trendCell, { sortable: false }),
      column("reward", "Reward", (run) => run.reward_last ?? run.eval_after?.mean, rewardCell, { num: true }),
      column(
        "speed",
        "Tokens/s",
        (run) => run.tokens_per_second,
        (run) => number(run.tokens_per_second && Math.round(run.tokens_per_second)),
        { num: true },
      ),
      column("alarms", "Alarms", (run) => run.alarms, alarmsCell, { num: true }),
      priced &&
        column(
          "cost",
          "Cost",
          (run) => run.cost,
          (run) => money(run.cost),
          { num: true },
        ),
      column(
        "seconds",
        "Time",
        (run) => run.seconds,
        (run) => duration(run.seconds),
        { num: true },
      ),
      column(
        "started",
        "Started",
        (run) => run.started,
        (run) => h("time", { title: exactly(run.started) }, when(run.started)),
        { num: true },
      ),
    ].filter(Boolean);
  }

  /** One request at a time; what changes meanwhile is fetched after it. */
  async #refresh(changed) {
    if (this.#fetching) return void (this.#again = true);
    this.#fetching = true;
    const before = new Map(this.runs.map((run) => [run.id, run]));
    try {
      this.runs = (await get("/api/runs", {}, this.life.signal)).runs;
      this.#draw();
      this.life.say(spoken(this.runs, before, changed));
    } catch (error) {
      unlessExpected(error); // gone for a moment: the sign at the top says so, and the next event brings the rows
    }
    this.#fetching = false;
    if (this.#again) {
      this.#again = false;
      this.#refresh(changed);
    }
  }
}

function nameCell(run) {
  const kind = run.kind === "run" ? null : h("span", { class: "chip" }, run.kind === "traj" ? ".traj files" : run.kind);
  const problems = run.problems?.length
    ? h("span", { class: "chip warn", title: run.problems.join("\n") }, "damaged")
    : null;
  const place = run.id !== run.name && run.id !== "." ? h("span", { class: "muted place" }, run.id) : null;
  const page = run.kind === "traj" ? "list" : "run"; // loose episodes are only a list
  return [h("a", { href: link(page, { run: run.id }) }, run.name), kind && " ", kind, problems && " ", problems, place];
}

function stepsCell(run) {
  if (run.kind !== "run") return count(run.trajectories, "episode");
  return run.max_steps ? `${run.steps ?? 0} / ${run.max_steps}` : number(run.steps);
}

/** "correct 17% → 36%": what success is depends on the task. */
function successCell(run) {
  if (run.success_last === null || run.success_last === undefined) return number(null);
  const name = h("span", { class: "muted" }, `${run.success_name ?? "success"} `);
  return [name, change(run.success_first, run.success_last, percent)].flat();
}

/** Of success where it is known, else of the reward. */
function trendCell(run) {
  if (run.success_trend?.length) return sparkline(run.success_trend, { name: run.success_name ?? "success" });
  return sparkline(run.reward_trend);
}

function rewardCell(run) {
  if (run.reward_last === null || run.reward_last === undefined)
    return run.eval_after ? interval(run.eval_after) : number(null);
  return change(run.reward_first, run.reward_last, number);
}

/** "0.12 → 0.31": only the last counts when there is no first. */
function change(first, last, format) {
  if (first === null || first === undefined || last === null || last === undefined) return format(last);
  return [h("span", { class: "muted" }, format(first), " → "), format(last)];
}

function alarmsCell(run) {
  if (run.kind !== "run") return number(null);
  if (!run.alarms) return h("span", { class: "muted" }, number(run.alarms));
  return h(
    "a",
    { href: link("run", { run: run.id, part: "alarms" }), class: "warn", title: (run.alarm_ids ?? []).join(", ") },
    number(run.alarms),
  );
}

function cut(text, length, whole = text) {
  if (!text) return number(null);
  return text.length > length
    ? h("span", { title: whole }, `${text.slice(0, length - 1)}…`)
    : h("span", { title: whole }, text);
}

/** A model of the hub without its owner, a directory by its last part. */
function shortModel(name) {
  return (name ?? "").split("/").filter(Boolean).at(-1) ?? "";
}

function searched(run) {
  return [run.name, run.id, run.task, run.model, run.status, run.kind, run.goal, ...(run.env ?? [])]
    .join(" ")
    .toLowerCase();
}

function spoken(runs, before, changed) {
  const news = runs.filter(
    (run) => (changed === null || changed.has(run.id)) && JSON.stringify(run) !== JSON.stringify(before.get(run.id)),
  );
  return news
    .slice(0, 3)
    .map((run) => `${run.name}: ${run.status}, step ${run.steps ?? 0}, ${spokenResult(run)}`)
    .join(". ");
}

function noRuns(dir) {
  return h(
    "div",
    { class: "notice" },
    h("p", {}, `No runs in ${dir} yet. Make one; it appears here by itself:`),
    h("pre", {}, "air train quickstart"),
    h("p", { class: "muted" }, "Runs elsewhere? Stop this server and name their directory: air view DIR."),
  );
}

function noMatch(wanted) {
  return h("p", { class: "notice" }, `No run has “${wanted}” in its name, task, model or status.`);
}
