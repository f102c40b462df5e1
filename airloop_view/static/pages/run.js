// One run: how it went, step by step, and what it was.

import { get, unlessExpected } from "../api.js";
import { h, replace } from "../dom.js";
import {
  bytes,
  count,
  duration,
  exactly,
  interval,
  money,
  number,
  percent,
  signed,
  spokenResult,
} from "../format.js";
import { link, rewrite } from "../route.js";
import { alarmsPart } from "../run_alarms.js";
import { configPart } from "../run_config.js";
import { doctorPart } from "../run_doctor.js";
import { evaluationsPart } from "../run_evaluations.js";
import { ledgerPart } from "../run_ledger.js";
import { StepPanel } from "../run_step.js";
import { Curves } from "../curves.js";
import { statusChip } from "../status.js";

export const identity = (params) => params.get("run") ?? "";

export async function open(params, life) {
  const run = params.get("run") ?? ".";
  const data = await get("/api/run", { run }, life.signal);
  const page = new RunPage(run, data, params, life);
  return { title: data.results.name, nodes: page.nodes(), update: (now) => page.follow(now) };
}

class RunPage {
  #part;
  #drawn = null; // what the part was drawn of
  #ends = [];
  #fetching = false;
  #again = false;

  constructor(run, data, params, life) {
    this.run = run;
    this.data = data;
    this.life = life;
    this.step = params.has("step") ? Number(params.get("step")) : null;
    this.#part = params.get("part");
    this.header = h("div");
    this.nav = h("nav", { class: "parts", "aria-label": "Parts of this run" });
    this.content = h("section", { class: "part" });
    this.steps = h("div"); // filled when the first step is there
    this.#drawSteps();
    life.atEnd(() => this.#ends.splice(0).forEach((act) => act()));
    life.onChange((changed) => (changed === null || changed.has(run)) && this.#refresh());
    life.keys([
      { keys: ["j", "ArrowRight"], says: "next step", act: () => this.panel?.move(1) },
      { keys: ["k", "ArrowLeft"], says: "previous step", act: () => this.panel?.move(-1) },
      { keys: ["l"], says: "all trajectories of this run", act: () => (location.hash = link("list", { run })) },
    ]);
  }

  nodes() {
    this.#drawHeader();
    this.#drawNav();
    this.#drawPart();
    const parts = this.#parts().length
      ? [this.nav, this.content]
      : h(
          "p",
          { class: "notice" },
          "Not a training run: it has no steps, curves or config. ",
          h("a", { href: link("list", { run: this.run }) }, "Read its trajectories"),
          ".",
        );
    return [this.header, this.steps, parts];
  }

  #drawSteps() {
    if (this.panel) return this.panel.update(this.data);
    if (!this.data.steps?.length) return;
    this.panel = new StepPanel(this.run, this.data, this.step, this.life, (step) => this.#pick(step));
    replace(this.steps, this.panel.element);
  }

  follow(params) {
    const part = params.get("part");
    if (part !== this.#part) {
      this.#part = part;
      this.#drawNav();
      this.#drawPart();
    }
    if (params.has("step") && Number(params.get("step")) !== this.step) this.panel?.choose(Number(params.get("step")));
  }

  #parts() {
    const { data } = this;
    const open = (data.alarms ?? []).filter((alarm) => alarm.event !== "cleared").length;
    return [
      data.curves?.length && ["curves", "Curves"],
      data.ledger?.x?.length && ["ledger", "Token ledger"],
      data.evaluations?.length && ["evaluations", `Evaluations (${data.evaluations.length})`],
      data.kind === "run" && ["alarms", `Alarms (${open})`],
      data.doctor && ["doctor", "Doctor"],
      data.kind === "run" && [
        "config",
        data.config_diff?.length ? `Config (${data.config_diff.length} changed)` : "Config",
      ],
    ].filter(Boolean);
  }

  #current() {
    const parts = this.#parts();
    return parts.some(([key]) => key === this.#part) ? this.#part : parts[0]?.[0];
  }

  #drawNav() {
    const here = this.#current();
    replace(
      this.nav,
      this.#parts().map(([key, name]) =>
        h("a", { href: this.#link({ part: key }), "aria-current": key === here ? "page" : undefined }, name),
      ),
    );
  }

  #link(more) {
    return link("run", { run: this.run, step: this.step, ...more });
  }

  #drawPart() {
    const { data } = this;
    for (const act of this.#ends.splice(0)) act(); // a part that is followed for hours is drawn a thousand times
    const life = { signal: this.life.signal, atEnd: (act) => this.#ends.push(act) };
    const draw = {
      curves: () => (this.curves = new Curves(this.#specs(), life)).element,
      ledger: () => ledgerPart(data.ledger, this.#marks(), life),
      evaluations: () => evaluationsPart(this.run, data.evaluations),
      alarms: () => alarmsPart(this.run, data),
      doctor: () => doctorPart(data.doctor),
      config: () => configPart(data),
    };
    const key = this.#current();
    this.curves = null;
    this.#drawn = this.#shownOf();
    if (!key) return;
    this.content.setAttribute("aria-label", this.#parts().find(([one]) => one === key)[1]);
    replace(this.content, draw[key]());
  }

  /** What the part in sight is made of, as text: where that stays, what is typed or unfolded in it stays too. */
  #shownOf() {
    const { data } = this;
    const key = this.#current();
    return JSON.stringify([key, key === "config" ? [data.config, data.config_diff] : data[key], data.alarms]);
  }

  #specs() {
    const marks = this.#marks();
    const at = this.step === null ? null : this.step + 1;
    return this.data.curves.map((curve) => ({
      key: curve.name,
      group: curve.group,
      title: curve.label,
      about: curve.text,
      unit: curve.unit,
      series: [{ name: curve.label, x: curve.x, y: curve.y }],
      marks,
      at,
      onPick: (x) => this.panel?.choose(x - 1),
    }));
  }

  #marks() {
    return (this.data.alarms ?? [])
      .filter((alarm) => alarm.event !== "cleared")
      .map((alarm) => ({ x: alarm.step + 1, text: alarm.name }));
  }

  #pick(step) {
    this.step = step;
    rewrite("run", { run: this.run, step, part: this.#part });
    this.#drawNav();
    this.curves?.mark(step + 1);
  }

  #drawHeader() {
    const { results: r, kind, parent } = this.data;
    replace(
      this.header,
      h(
        "div",
        { class: "head" },
        h("h1", {}, r.name),
        kind === "traj" ? null : statusChip(r),
        kind !== "run" && h("span", { class: "chip" }, kind),
        r.why && h("span", { class: "muted" }, r.why),
        parent &&
          h("span", { class: "muted" }, "after ", h("a", { href: link("run", { run: parent }) }, r.parent ?? parent)),
        h(
          "span",
          { class: "end" },
          h("a", { class: "button", href: link("list", { run: this.run }) }, "All its trajectories"),
        ),
      ),
      r.goal && h("p", {}, r.goal),
      r.problems?.length
        ? h(
            "div",
            { class: "notice warn" },
            r.problems.map((problem) => h("p", {}, problem)),
          )
        : null,
      figures(r, kind),
    );
  }

  async #refresh() {
    if (this.#fetching) return void (this.#again = true);
    this.#fetching = true;
    try {
      this.data = await get("/api/run", { run: this.run }, this.life.signal);
      this.#drawHeader();
      this.#drawNav();
      this.#drawSteps();
      const stays = this.curves ? this.curves.update(this.#specs()) : this.#drawn === this.#shownOf();
      if (!stays) this.#drawPart();
      const { results } = this.data;
      this.life.say(
        `${results.name}: step ${results.steps ?? 0}, ${spokenResult(results)}, ${results.status}`,
      );
    } catch (error) {
      unlessExpected(error); // a server that is gone is said at the top; the next event brings the news
    }
    this.#fetching = false;
    if (this.#again) {
      this.#again = false;
      this.#refresh();
    }
  }
}

/** The run in a line of figures, each with its name above. */
function figures(r, kind) {
  const success = r.success_name ?? "success";
  const arrow = (first, last, format) =>
    first === null || first === undefined ? format(last) : `${format(first)} → ${format(last)}`;
  const shown = [
    ["Task", r.task],
    ["Model", r.model],
    ["Steps", kind !== "run" ? null : r.max_steps ? `${r.steps ?? 0} of ${r.max_steps}` : r.steps],
    [
      `${success}, first → last`,
      r.success_last === null || r.success_last === undefined ? null : arrow(r.success_first, r.success_last, percent),
    ],
    [`Held-out ${success}, before`, r.eval_success_before && interval(r.eval_success_before)],
    [`Held-out ${success}, after`, r.eval_success_after && interval(r.eval_success_after)],
    [
      "Reward, first → last",
      r.reward_last === null || r.reward_last === undefined ? null : arrow(r.reward_first, r.reward_last, number),
    ],
    ["Held-out reward, before", r.eval_before && interval(r.eval_before)],
    ["Held-out reward, after", r.eval_after && interval(r.eval_after)],
    [
      "Mean improvement",
      r.mean_improvement === null || r.mean_improvement === undefined ? null : signed(r.mean_improvement),
    ],
    ["Best", r.best_improvement === null || r.best_improvement === undefined ? null : signed(r.best_improvement)],
    ["Tokens/s", r.tokens_per_second && number(Math.round(r.tokens_per_second))],
    ["Peak memory", r.peak_memory_bytes && bytes(r.peak_memory_bytes)],
    ["Sandbox errors", r.sandbox_errors ? count(r.sandbox_errors, "error") : null],
    [
      "Time",
      r.seconds === null || r.seconds === undefined
        ? null
        : h("span", { title: `from ${exactly(r.started)}` }, duration(r.seconds)),
    ],
    ["Cost", r.cost === null || r.cost === undefined ? null : money(r.cost)],
    ["Seed", r.seed],
    ...Object.entries(r.sink_urls).map(([title, url]) => [title, h("a", { href: url, rel: "noreferrer" }, "open")]),
  ].filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h(
    "dl",
    { class: "figures" },
    shown.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}
