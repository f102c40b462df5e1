// One turn as a person reads it: what the agent was shown, what it thought, what it did, what came back.

import { fileDiff } from "./diff.js";
import { h } from "./dom.js";
import { duration, isNumber, number, signed } from "./format.js";
import { folded, lineCount, longText } from "./folded.js";
import { highlighted } from "./highlight.js";
import { timeBar, totalTime } from "./timebar.js";

const LONGEST_ROLE = 24;
const ROLES = { system: "System", user: "Task", assistant: "Agent", tool: "Tool" };

/** `place`: {run, id, index, before (the turn before, or null), longest, href(turn)}. */
export function turnArticle(turn, place) {
  const { index } = place;
  return h(
    "article",
    {
      class: "turn",
      id: `turn-${index + 1}`,
      tabindex: "-1",
      "aria-labelledby": `turn-${index + 1}-title`,
      data: { turn: index + 1 },
    },
    head(turn, place),
    h(
      "div",
      { class: "said" },
      shown(turn, place),
      reply(turn, place),
      (turn.files ?? []).map((file) => fileDiff(file, place)),
      observations(turn, place),
    ),
  );
}

function head(turn, { index, longest, href }) {
  const rewards = Object.entries(turn.rewards ?? {}).filter(([, value]) => isNumber(value));
  return h(
    "header",
    {},
    h(
      "h2",
      { id: `turn-${index + 1}-title` },
      h("a", { href: href(index + 1), title: "A link to this turn" }, `Turn ${index + 1}`),
    ),
    rewards.map(([name, value]) => rewardChip(name, value)),
    h(
      "span",
      { class: "muted" },
      turn.tokens ? `${number(turn.tokens)} tokens` : null,
      turn.stop === "length" ? h("span", { class: "chip warn" }, "cut off at max_tokens") : null,
    ),
    h(
      "span",
      { class: "turn-time" },
      timeBar(turn.times, longest),
      h("span", { class: "muted" }, totalTime(turn.times) ? duration(totalTime(turn.times)) : ""),
    ),
  );
}

export function rewardChip(name, value) {
  const tone = value > 0 ? "good" : value < 0 ? "bad" : "";
  return h("span", { class: `chip ${tone}`, title: `reward component ${name}` }, `${name} ${signed(value)}`);
}

/** New messages, without those that only repeat what the turn before has as its output. */
function shown(turn, place) {
  const { run, id, index, before } = place;
  const repeated = new Set((before?.observations ?? []).map((one) => (one.text ?? "").trim()));
  const joined = (before?.observations ?? [])
    .map((one) => one.text ?? "")
    .join("\n")
    .trim();
  return (turn.shown ?? []).map((message) => {
    const content = message.content ?? "";
    if (index > 0 && (repeated.has(content.trim()) || content.trim() === joined)) return null;
    const rewritten = isNumber(message.place)
      ? h("span", { class: "chip" }, `message ${message.place + 1}, as it now stands`)
      : null;
    const more = { cut: message.cut, run, id, part: message.part };
    const role =
      message.role === "user" && index > 0
        ? "Shown"
        : (ROLES[message.role] ?? String(message.role).slice(0, LONGEST_ROLE));
    return h(
      "section",
      { class: `message ${message.role === "system" ? "system" : "user"}`, "aria-label": role },
      h("h3", {}, role, " ", rewritten),
      longText(content, { most: message.role === "system" ? 6 : 24, more, className: "prose" }),
    );
  });
}

function reply(turn, { run, id }) {
  const actions = (turn.actions ?? []).filter((action) => action.kind !== "text");
  const raw = turn.reply ?? "";
  const thought = turn.thought?.trim() ?? "";
  const understood = actions.some((action) => action.kind !== "invalid");
  const rest = { cut: turn.reply_cut, run, id, part: turn.reply_part };
  const restOfThought = { cut: turn.thought_cut, run, id, part: turn.thought_part };
  const said =
    understood || (thought && thought === raw.trim())
      ? null
      : longText(raw, { most: 24, className: raw.includes("```") ? "mono" : "prose", more: rest });
  return h(
    "section",
    { class: "message agent", "aria-label": "Agent" },
    h("h3", {}, "Agent"),
    thought
      ? h("div", { class: "thought" }, longText(thought, { most: 24, className: "prose", more: restOfThought }))
      : null,
    said,
    actions.map((action, i) => actionBlock(action, turn.observations?.[i]?.text ?? "", { run, id })),
    understood && raw.trim()
      ? h(
          "details",
          { class: "raw" },
          h("summary", {}, "The reply as it was sampled"),
          longText(raw, { most: 60, className: "mono", more: rest }),
        )
      : null,
  );
}

/** `answer`: what came back; a refusal that it repeats is shown once. */
function actionBlock(action, answer, { run, id }) {
  const text = action.text ?? argumentsText(action);
  if (action.kind === "invalid")
    return h(
      "div",
      { class: "action invalid" },
      h("span", { class: "chip bad" }, "not understood"),
      answer.includes(text) ? null : longText(text, { className: "prose" }),
    );
  const cut = action.cut
    ? longText(text, { most: 30, className: "code", more: { cut: action.cut, run, id, part: action.part } })
    : null;
  return h(
    "div",
    { class: "action" },
    action.name ? h("span", { class: "tool-name" }, action.name) : null,
    cut ?? folded(highlighted(action.html, text), lineCount(text), 30),
  );
}

function argumentsText(action) {
  return typeof action.arguments === "string" ? action.arguments : JSON.stringify(action.arguments ?? {}, null, 2);
}

function observations(turn, place) {
  const { run, id } = place;
  return (turn.observations ?? []).map((one) => {
    const more = { cut: one.cut, run, id, part: one.part };
    const marks = [
      one.failed && h("span", { class: "chip bad" }, "failed"),
      one.done && h("span", { class: "chip accent" }, "end"),
    ];
    const text = (one.text ?? "") === "" ? h("p", { class: "muted" }, "no output") : longText(one.text, { more });
    return h(
      "section",
      { class: `message tool${one.failed ? " failed" : ""}`, "aria-label": "Output" },
      h(
        "h3",
        {},
        "Output ",
        marks,
        Object.entries(one.rewards ?? {})
          .filter(() => (turn.observations ?? []).length > 1)
          .map(([name, value]) => rewardChip(name, value)),
      ),
      text,
    );
  });
}
