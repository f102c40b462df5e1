// The rollouts of one task side by side: what each was worth, and where they part.

import { get } from "../api.js";
import { h } from "../dom.js";
import { duration, isNumber, number, signed } from "../format.js";
import { folded, lineCount, longText } from "../folded.js";
import { link } from "../route.js";
import { sourceName } from "../source.js";
import { dots, extent } from "../sparkline.js";
import { endingChip } from "../status.js";
import { rewardChip } from "../turn.js";

export const identity = (params) => ["run", "source", "task", "place"].map((name) => params.get(name)).join("\n");

export async function open(params, life) {
  const place = { run: params.get("run") ?? ".", source: params.get("source") ?? "", task: params.get("task") ?? "" };
  const data = await get("/api/group", { ...place, place: params.get("place") }, life.signal);
  const members = [...data.members].sort((a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity));
  life.keys([
    { keys: ["j", "ArrowRight"], says: "next member", act: () => move(1) },
    { keys: ["k", "ArrowLeft"], says: "previous member", act: () => move(-1) },
    {
      keys: ["u"],
      says: "up: to the step’s trajectories",
      act: () => (location.hash = link("list", { run: place.run, source: place.source })),
    },
  ]);
  return {
    title: `Group: ${place.task}`,
    nodes: [head(place, data, members), prompt(data), divergence(data, members), sideBySide(place, data, members)],
  };
}

function head(place, data, members) {
  const rewards = members.map((member) => member.reward);
  const known = rewards.filter(isNumber);
  const mean = known.reduce((a, b) => a + b, 0) / (known.length || 1);
  const crumbs = [
    h("a", { href: link("run", { run: place.run }) }, place.run === "." ? "this run" : place.run),
    h("a", { href: link("list", { run: place.run, source: place.source }) }, sourceName(place.source)),
    h("span", {}, place.task),
  ];
  return h(
    "div",
    { class: "head" },
    h(
      "ol",
      { class: "crumbs", "aria-label": "Where this is" },
      crumbs.map((item) => h("li", {}, item)),
    ),
    h("h1", {}, taskName(data.task) ?? place.task),
    h("span", { class: "muted" }, `${members.length} rollouts, mean reward ${number(mean)}`),
    dots(rewards, extent(rewards), { width: 240, height: 20 }),
  );
}

function prompt(data) {
  return h(
    "details",
    { class: "card" },
    h("summary", {}, "The prompt they all had"),
    longText(data.prompt, { most: 30, className: "prose" }),
  );
}

function divergence({ diverge }, members) {
  if (members.length < 2)
    return h("p", { class: "notice" }, "A group of one: there is nothing to compare it with, and no baseline.");
  if (!diverge)
    return h(
      "p",
      { class: "notice warn" },
      "All members replied the same, word for word: nothing can be learned from their differences.",
    );
  const silent = new Set(members.map((member) => member.reward).filter(isNumber)).size === 1;
  return h(
    "p",
    { class: "notice" },
    `They part in turn ${diverge.turn + 1} after ${number(diverge.chars)} characters; what is the same in all is grey. `,
    silent ? h("strong", {}, "All scored the same: no advantage, nothing is learned.") : null,
  );
}

/** A row for each turn, a column for each member, best reward first. */
function sideBySide(place, data, members) {
  const turns = Math.max(0, ...members.map((member) => member.turns.length));
  const rows = Array.from({ length: turns }, (_, turn) =>
    h(
      "tr",
      {},
      h("th", { scope: "row", class: "turn-name" }, turn + 1),
      members.map((member) => cell(place, data, members, member, turn)),
    ),
  );
  const heads = members.map((member, i) => memberHead(place, member, i));
  const table = h(
    "table",
    { class: "members" },
    h("caption", { class: "unseen" }, "Members of the group, turn by turn, best reward first"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Turn"), heads)),
    h("tbody", {}, rows),
  );
  table.style.setProperty("--members", members.length);
  return h(
    "div",
    { class: "scroll sides", tabindex: "0", role: "region", "aria-label": "Members side by side" },
    table,
  );
}

function memberHead(place, member, i) {
  const parts = Object.entries(member.rewards ?? {}).filter(([, value]) => isNumber(value));
  return h(
    "th",
    { scope: "col" },
    h(
      "div",
      { class: "member" },
      h(
        "a",
        { href: link("trajectory", { run: place.run, id: member.id, source: place.source }), class: "member-link" },
        `Rollout ${i + 1}`,
      ),
      endingChip(member.ending),
    ),
    h(
      "div",
      {},
      isNumber(member.success) && ["success ", h("strong", {}, number(member.success)), " "],
      "reward ",
      h("strong", {}, number(member.reward)),
      isNumber(member.advantage)
        ? [" · advantage ", h("strong", { class: member.advantage < 0 ? "bad" : "good" }, signed(member.advantage))]
        : null,
    ),
    h(
      "div",
      { class: "muted" },
      [member.fate, `${number(member.tokens)} tokens`, duration(member.seconds)].filter(Boolean).join(" · "),
    ),
    parts.length > 1
      ? h(
          "div",
          {},
          parts.map(([name, value]) => rewardChip(name, value)),
        )
      : null,
  );
}

function cell(place, data, members, member, turn) {
  const one = member.turns[turn];
  if (!one) return h("td", { class: "over" }, turn === member.turns.length ? "ended" : "");
  const same = sameLength(members, turn);
  const own = one.reply.slice(same);
  const reply = h(
    "pre",
    { class: "prose" },
    h("span", { class: "same" }, one.reply.slice(0, same)),
    own && h("span", { class: turn === data.diverge?.turn ? "parts-here" : "differs" }, own),
  );
  const link_ = link("trajectory", { run: place.run, id: member.id, source: place.source, turn: turn + 1 });
  return h(
    "td",
    {},
    h(
      "div",
      { class: "cell-head" },
      h("a", { href: link_, "aria-label": `read turn ${turn + 1} of rollout ${members.indexOf(member) + 1}` }, "read"),
      Object.entries(one.rewards ?? {})
        .filter(([, value]) => isNumber(value))
        .map(([name, value]) => rewardChip(name, value)),
    ),
    folded(reply, lineCount(one.reply), 12),
    one.observation ? longText(one.observation, { most: 8 }) : null,
  );
}

/** Characters with which every member's reply of this turn begins. */
function sameLength(members, turn) {
  const replies = members.map((member) => member.turns[turn]?.reply).filter((reply) => reply !== undefined);
  const shortest = Math.min(...replies.map((reply) => reply.length));
  let same = 0;
  while (same < shortest && replies.every((reply) => reply[same] === replies[0][same])) same += 1;
  return same;
}

function taskName(task) {
  return typeof task === "string" ? task : task?.id;
}

function move(by) {
  const links = [...document.querySelectorAll(".member-link")];
  const at = links.indexOf(document.activeElement);
  links[Math.max(0, Math.min(links.length - 1, at + by))]?.focus();
}
