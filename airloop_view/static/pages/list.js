// Trajectories: search, filter, page by page. A hundred rows at a time, whatever the number behind them.

import { get } from "../api.js";
import { h, replace } from "../dom.js";
import { duration, isNumber, number, signed } from "../format.js";
import { filterForm, filtersOf } from "../filters.js";
import { link, rewrite } from "../route.js";
import { SortableTable } from "../sortable.js";
import { sourceName } from "../source.js";
import { endingChip } from "../status.js";
import { firstLine } from "../text.js";

const PAGE = 100;

export const identity = () => "";

export async function open(params, life) {
  const page = new ListPage(life);
  await page.load(params);
  return { title: "Trajectories", nodes: page.nodes(), update: (now) => page.load(now) };
}

class ListPage {
  #asked = 0;

  constructor(life) {
    this.life = life;
    this.form = h("div");
    this.found = h("span", { class: "muted", role: "status" });
    this.list = h("div");
    this.pager = h("nav", { class: "pager", "aria-label": "Pages" });
    this.title = h("h1", {}, "Trajectories");
    life.onChange((changed) => (changed === null || !this.run || changed.has(this.run)) && this.#fetch());
    life.keys([
      { keys: ["j", "ArrowDown"], says: "next row", act: () => this.table.move(1) },
      { keys: ["k", "ArrowUp"], says: "previous row", act: () => this.table.move(-1) },
      { keys: ["n"], says: "next page", act: () => this.#turn(1) },
      { keys: ["p"], says: "previous page", act: () => this.#turn(-1) },
    ]);
  }

  nodes() {
    return [h("div", { class: "head" }, this.title, this.found), this.form, this.list, this.pager];
  }

  async load(params) {
    this.run = params.get("run") ?? "";
    this.values = { ...filtersOf(params), in: undefined };
    this.offset = Math.max(0, Number(params.get("offset")) || 0);
    this.runs ??= (await get("/api/runs", {}, this.life.signal)).runs;
    const only = this.run || (this.runs.length === 1 ? this.runs[0].id : "");
    this.facets = only ? await this.#facets(only) : null;
    this.#drawForm();
    this.table = new SortableTable({
      columns: this.#columns(),
      identity: (row) => `${row.run} ${row.id}`,
      label: "Trajectories",
      sortBy: this.values.sort ?? "started",
      descending: this.values.desc !== "0", // as the server takes it
      onSort: ({ key, descending }) => this.#change({ ...this.values, sort: key, desc: descending ? "1" : "0" }),
    });
    await this.#fetch();
  }

  async #facets(run) {
    if (this.facetsOf === run) return this.facets;
    this.facetsOf = run;
    const data = await get("/api/run", { run }, this.life.signal).catch(() => null);
    return data && { ...data.facets, alarms: [...new Set((data.alarms ?? []).map((alarm) => alarm.id))] };
  }

  /** Who types keeps the box (its values are those of the address already), unless another run has other choices. */
  #drawForm() {
    const focused = this.form.contains(document.activeElement) ? document.activeElement.name : null;
    if (focused !== null && this.formOf === this.run) return;
    this.formOf = this.run;
    const { values, runs, run, facets } = this;
    replace(this.form, filterForm({ values, runs, run, facets, onChange: (values) => this.#filter(values) }));
    if (focused) this.form.querySelector(`[name="${focused}"]`)?.focus();
  }

  #filter({ run = "", ...rest }) {
    const { sort, desc } = this.values;
    const moved = run !== this.run; // another run has other tasks and steps: only the words stay
    this.run = run;
    this.#change({ ...(moved ? { q: rest.q } : rest), sort, desc });
  }

  #change(values) {
    rewrite("list", { run: this.run, ...values });
    this.load(new URLSearchParams(location.hash.split("?")[1] ?? ""));
  }

  #turn(by) {
    const offset = this.offset + by * PAGE;
    if (offset < 0 || offset >= this.total) return;
    location.hash = link("list", { run: this.run, ...this.values, offset });
  }

  async #fetch() {
    const asked = ++this.#asked;
    const wanted = { run: this.run, ...this.values, offset: this.offset, limit: PAGE };
    try {
      const answer = await get("/api/trajectories", wanted, this.life.signal);
      if (asked !== this.#asked) return;
      this.total = answer.total;
      this.#draw(answer);
    } catch (error) {
      if (error.name === "AbortError" || asked !== this.#asked) return;
      this.found.textContent = "";
      replace(
        this.list,
        h(
          "div",
          { class: "notice bad", role: "alert" },
          h("p", {}, error.message),
          error.fix && h("p", {}, h("strong", {}, "What to do: "), error.fix),
        ),
      );
      replace(this.pager);
    }
  }

  #draw({ total, rows, ms }) {
    this.found.textContent = `${number(total)} found${isNumber(ms) ? ` in ${number(Math.max(1, Math.round(ms)))} ms` : ""}`;
    this.table.show(rows);
    replace(this.list, rows.length ? this.table.element : this.#nothing());
    const last = Math.min(total, this.offset + rows.length);
    const step = (name, offset, possible) =>
      possible
        ? h("a", { class: "button", href: link("list", { run: this.run, ...this.values, offset }) }, name)
        : h("span", { class: "button", "aria-disabled": "true" }, name);
    replace(
      this.pager,
      total > PAGE && [
        step("Previous", Math.max(0, this.offset - PAGE), this.offset > 0),
        h("span", {}, `${number(this.offset + 1)}–${number(last)} of ${number(total)}`),
        step("Next", this.offset + PAGE, last < total),
      ],
    );
  }

  #nothing() {
    const filtered = Object.keys(this.values).some((key) => this.values[key] && !["sort", "desc"].includes(key));
    if (filtered)
      return h(
        "div",
        { class: "notice" },
        h("p", {}, "No trajectory is like that."),
        h("p", { class: "muted" }, "Take a filter away, or search for fewer words; “quotes” look for a phrase."),
      );
    return h(
      "div",
      { class: "notice" },
      h("p", {}, "No trajectories here yet. They appear as episodes end:"),
      h("pre", {}, "air train quickstart"),
    );
  }

  #columns() {
    const column = (key, name, cell, more = {}) => ({ key, name, cell, ...more });
    const open = (row) =>
      h(
        "a",
        {
          href: link("trajectory", {
            run: row.run,
            id: row.id,
            ...this.values,
            in: this.run || this.runs.length === 1 ? null : "all",
          }),
        },
        row.task || row.id,
      );
    const names = new Map(this.runs.map((run) => [run.id, run.name]));
    return [
      column("task", "Task", open, { rowHead: true, class: "name" }),
      !this.run &&
        this.runs.length > 1 &&
        column("run", "Run", (row) => names.get(row.run) ?? row.run, { class: "nowrap" }),
      column("source", "From", (row) => sourceName(row.source), { class: "nowrap" }),
      column("success", "Success", (row) => number(row.success), { num: true }),
      column("reward", "Reward", (row) => number(row.reward), { num: true }),
      column("advantage", "Advantage", (row) => signed(row.advantage, 2), { num: true }),
      column("ending", "Ending", (row) => endingChip(row.ending)),
      column("fate", "Fate", (row) => h("span", { class: "muted" }, row.fate ?? "–"), { class: "nowrap" }),
      column("version", "Policy", (row) => number(row.version), { num: true }),
      column("turns", "Turns", (row) => number(row.turns), { num: true }),
      column("tokens", "Tokens", (row) => number(row.tokens), { num: true }),
      column("seconds", "Time", (row) => duration(row.seconds), { num: true }),
      column("preview", "Begins", (row) => firstLine(row.preview), { class: "preview", sortable: false }),
    ].filter(Boolean);
  }
}
