// One trajectory: the conversation, and beside it what it was worth and what training made of it.

import { address, get } from "../api.js";
import { facts, h, replace } from "../dom.js";
import { duration, exactly, isNumber, number, signed } from "../format.js";
import { filtersOf, neighbourQuery } from "../filters.js";
import { longText } from "../folded.js";
import { link, rewrite } from "../route.js";
import { sourceName } from "../source.js";
import { endingChip, severityChip } from "../status.js";
import { timeBar, timeLegend, totalTime } from "../timebar.js";
import { rewardChip, turnArticle } from "../turn.js";

export const identity = (params) => `${params.get("run")} ${params.get("id")} ${JSON.stringify(filtersOf(params))}`;

export async function open(params, life) {
  const place = { run: params.get("run") ?? ".", id: params.get("id") ?? "" };
  const data = await get("/api/trajectory", place, life.signal);
  const page = new TrajectoryPage(place, data, params, life);
  return {
    title: `${data.task?.id ?? data.id}, reward ${number(data.reward)}`,
    nodes: page.nodes(),
    update: (now) => page.follow(now),
    shown: () => page.shown(params),
  };
}

class TrajectoryPage {
  #turn = 0; // the one that keys move from; 0: none yet

  constructor(place, data, params, life) {
    Object.assign(this, { place, data, life });
    this.filters = filtersOf(params);
    this.steps = h("nav", { class: "stepper", "aria-label": "Trajectories" });
    this.beside = { previous: null, next: null };
    const go = (which) => () => this.beside[which] && (location.hash = this.#link(this.beside[which]));
    life.keys([
      { keys: ["j", "ArrowRight"], says: "next trajectory", act: go("next") },
      { keys: ["k", "ArrowLeft"], says: "previous trajectory", act: go("previous") },
      { keys: ["n"], says: "next turn", act: () => this.#move(1) },
      { keys: ["p"], says: "previous turn", act: () => this.#move(-1) },
      { keys: ["t"], says: "its tokens", act: () => (location.hash = link("tokens", place)) },
      { keys: ["g"], says: "its group", act: () => data.group && (location.hash = this.#groupLink()) },
      { keys: ["e"], says: "export as one HTML file", act: () => document.getElementById("export").click() },
      { keys: ["u"], says: "up: to the list", act: () => (location.hash = this.#listLink()) },
    ]);
    this.#neighbours();
  }

  nodes() {
    const { data, place } = this;
    return [
      h(
        "div",
        { class: "head" },
        this.#crumbs(),
        h("h1", {}, data.task?.id ?? data.id),
        endingChip(data.ending),
        isNumber(data.metrics?.success) &&
          h("span", { class: "reward" }, "success ", h("strong", {}, number(data.metrics.success))),
        h("span", { class: "reward" }, "reward ", h("strong", {}, number(data.reward))),
        data.training &&
          isNumber(data.training.advantage) &&
          h("span", { class: "reward" }, "advantage ", h("strong", {}, signed(data.training.advantage))),
        h(
          "span",
          { class: "end bar" },
          this.steps,
          h("a", { class: "button", href: link("tokens", place) }, "Tokens"),
          h("a", { class: "button", id: "export", href: address("/export", place), download: "" }, "Export"),
        ),
      ),
      data.error &&
        h(
          "div",
          { class: "notice bad" },
          h(
            "p",
            {},
            h("strong", {}, data.ending === "unreadable" ? "This file cannot be read: " : "The machinery failed: "),
            data.error,
          ),
          data.json && h("p", {}, h("a", { href: data.json }, "The file as it is")),
        ),
      h("div", { class: "reading" }, this.#conversation(), this.#side()),
    ];
  }

  shown(params) {
    if (params.has("turn")) this.#show(Number(params.get("turn")));
  }

  follow(params) {
    if (params.has("turn")) this.#show(Number(params.get("turn")));
  }

  #crumbs() {
    const { data, place } = this;
    const items = [
      h("a", { href: link("run", { run: place.run }) }, place.run === "." ? "this run" : place.run),
      data.source &&
        data.source !== "." &&
        h("a", { href: link("list", { run: place.run, source: data.source }) }, sourceName(data.source)),
      data.group && h("a", { href: this.#groupLink() }, `group of ${data.group.size}`),
      h("span", {}, data.id),
    ].filter(Boolean);
    return h(
      "ol",
      { class: "crumbs", "aria-label": "Where this is" },
      items.map((item) => h("li", {}, item)),
    );
  }

  #conversation() {
    const { data, place } = this;
    const turns = data.turns ?? [];
    const longest = Math.max(0, ...turns.map((turn) => totalTime(turn.times)));
    const href = (turn) => this.#link(place, { turn });
    const articles = turns.map((turn, index) =>
      turnArticle(turn, { ...place, index, before: turns[index - 1] ?? null, longest, href }),
    );
    const note = turns.length
      ? null
      : h("p", { class: "notice" }, "This trajectory has no turns: it ended before the first reply.");
    const rest =
      data.turns_total > turns.length
        ? h(
            "p",
            { class: "notice" },
            `The first ${number(turns.length)} of ${number(data.turns_total)} turns; the others are in the `,
            h("a", { href: data.json }, "file"),
            ".",
          )
        : null;
    return h("div", { class: "conversation" }, note, articles, rest, this.#end());
  }

  #end() {
    const { data } = this;
    const parts = Object.entries(data.rewards ?? {}).filter(([, value]) => isNumber(value));
    return h(
      "section",
      { class: "ending", "aria-label": "The end" },
      h("h2", {}, "The end"),
      endingChip(data.ending),
      parts.map(([name, value]) => rewardChip(name, value)),
      h("span", {}, "reward ", h("strong", {}, number(data.reward))),
    );
  }

  #side() {
    const { data } = this;
    return h(
      "aside",
      { class: "side", "aria-label": "About this trajectory", tabindex: "0" },
      this.#training(),
      this.#map(),
      this.#about(),
      payload(data.task?.payload, this.place),
      table("Metrics", data.metrics),
      this.#alarms(),
    );
  }

  #training() {
    const { training, group } = this.data;
    return h(
      "section",
      { class: "card" },
      h("h2", {}, "What training made of it"),
      training
        ? h("p", {}, training.why)
        : h("p", { class: "muted" }, "Nothing: it was not part of a training step, or the step is not over."),
      facts([
        ["Fate", training?.fate],
        ["Advantage", isNumber(training?.advantage) && signed(training.advantage)],
        ["Its group", group && h("a", { href: this.#groupLink() }, `${group.size} episodes`)],
        ["Group’s reward", group && `${number(group.mean)} ± ${number(group.std)}`],
      ]),
    );
  }

  /** The turns in small: where time went, where rewards arose. */
  #map() {
    const turns = this.data.turns ?? [];
    if (!turns.length) return null;
    const longest = Math.max(...turns.map((turn) => totalTime(turn.times)));
    const rows = turns.map((turn, i) => {
      const earned = Object.values(turn.rewards ?? {}).filter(isNumber); // unweighted: several have no sum
      const failed = (turn.observations ?? []).some((one) => one.failed);
      return h(
        "li",
        {},
        h(
          "a",
          { href: this.#link(this.place, { turn: i + 1 }), data: { turn: i + 1 } },
          h("span", {}, i + 1),
          h("span", { class: "map-bar" }, timeBar(turn.times, longest)),
          failed && h("span", { class: "bad", title: "a command failed" }, "✕"),
          earned.length === 1 &&
            earned[0] !== 0 &&
            h("span", { class: earned[0] > 0 ? "good" : "bad" }, signed(earned[0], 2)),
          earned.length > 1 && h("span", {}, `${earned.length} rewards`),
        ),
      );
    });
    return h(
      "section",
      { class: "card" },
      h("h2", {}, "Turns"),
      longest > 0 && timeLegend(),
      h("ol", { class: "map" }, rows),
    );
  }

  #about() {
    const { data } = this;
    const parts = Object.entries(data.rewards ?? {}).map(([name, value]) => [name, signed(value)]);
    return h(
      "section",
      { class: "card" },
      h("h2", {}, "About"),
      facts([
        ["Environment", data.task?.env],
        ["Family", data.task?.family],
        ["Split", data.task?.split],
        ...parts.map(([name, value]) => [`Reward: ${name}`, value]),
        ["Policy version", isNumber(data.version) ? number(data.version) : null],
        ["Seed", data.seed],
        ["Took", isNumber(data.seconds) && duration(data.seconds)],
        ["Started", isNumber(data.started) && exactly(data.started)],
        [
          "Tools",
          data.tools?.length ? data.tools.map((tool) => tool?.function?.name ?? tool?.name ?? "?").join(", ") : null,
        ],
        ["File", data.json && h("a", { href: data.json }, "JSON")],
      ]),
    );
  }

  #alarms() {
    const alarms = (this.data.alarms ?? []).filter((alarm) => alarm.event !== "cleared");
    if (!alarms.length) return null;
    return h(
      "section",
      { class: "card" },
      h("h2", {}, "Alarms at its step"),
      alarms.map((alarm) => h("p", {}, severityChip(alarm.severity), ` ${alarm.name}: `, alarm.seen)),
    );
  }

  async #neighbours() {
    const found = await get("/api/neighbours", neighbourQuery(this.filters, this.place), this.life.signal).catch(
      () => null,
    );
    if (!found) return;
    this.beside = found;
    const step = (name, to, key) =>
      to
        ? h("a", { class: "button", href: this.#link(to), "aria-keyshortcuts": key }, name)
        : h("span", { class: "button", "aria-disabled": "true" }, name);
    replace(
      this.steps,
      step("‹ Previous", found.previous, "k"),
      h(
        "span",
        { class: "muted nowrap" },
        found.place ? `${number(found.place)} of ${number(found.total)}` : `${number(found.total)} in the list`,
      ),
      step("Next ›", found.next, "j"),
    );
  }

  #link(to, more = {}) {
    return link("trajectory", { run: to.run, id: to.id, ...this.filters, ...more });
  }

  #listLink() {
    const { in: over, ...rest } = this.filters;
    return link("list", { run: over ? null : this.place.run, ...rest });
  }

  #groupLink() {
    const { group } = this.data;
    return link("group", { run: this.place.run, source: group.source, task: group.task, place: group.place });
  }

  #move(by) {
    const last = (this.data.turns ?? []).length;
    const turn = Math.max(1, Math.min(last, this.#turn + by));
    rewrite("trajectory", { ...this.place, ...this.filters, turn });
    this.#show(turn);
  }

  #show(turn) {
    const article = document.getElementById(`turn-${turn}`);
    if (!article) return;
    this.#turn = turn;
    for (const mark of document.querySelectorAll(".map a"))
      mark.toggleAttribute("aria-current", Number(mark.dataset.turn) === turn);
    article.scrollIntoView({ block: "start" });
    article.focus({ preventScroll: true });
  }
}

function payload(given, { run, id }) {
  if (!given || !Object.keys(given).length) return null;
  const cut = typeof given.cut === "number" && given.part === "payload";
  const text = cut ? given.text : JSON.stringify(given, null, 2);
  return h(
    "section",
    { class: "card" },
    h("h2", {}, "Its task’s data"),
    longText(text, { most: 10, more: cut ? { cut: given.cut, part: given.part, run, id } : null, className: "mono" }),
  );
}

function table(title, values) {
  const entries = Object.entries(values ?? {});
  if (!entries.length) return null;
  return h(
    "section",
    { class: "card" },
    h("h2", {}, title),
    facts(entries.map(([name, value]) => [name.replaceAll("_", " "), number(value)])),
  );
}
