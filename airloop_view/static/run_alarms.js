// Alarms in the order they were raised: what was seen, why it matters, what to change.

import { h } from "./dom.js";
import { when } from "./format.js";
import { link } from "./route.js";
import { severityChip } from "./status.js";

export function alarmsPart(run, data) {
  const raised = (data.alarms ?? []).filter((alarm) => alarm.event !== "cleared");
  if (!raised.length) return h("p", { class: "notice" }, "No alarm was raised.");
  return raised.map((alarm) => {
    const cleared = data.alarms.find(
      (other) => other.event === "cleared" && other.name === alarm.name && other.step >= alarm.step,
    );
    return h(
      "article",
      { class: "card alarm" },
      h(
        "div",
        { class: "head" },
        h("h2", {}, alarm.name),
        severityChip(alarm.severity),
        h("span", { class: "muted" }, alarm.id),
        h("a", { href: link("run", { run, step: alarm.step, part: "alarms" }) }, `step ${alarm.step + 1}`),
        h("span", { class: "muted" }, when(alarm.time)),
        cleared && h("span", { class: "chip good" }, `cleared at step ${cleared.step + 1}`),
        h("a", { class: "end", href: link("list", { run, alarm: alarm.id }) }, "trajectories of its steps"),
      ),
      h("p", {}, h("strong", {}, "Seen: "), alarm.seen),
      alarm.why && h("p", {}, h("strong", {}, "Why it matters: "), alarm.why),
      alarm.fix && h("p", {}, h("strong", {}, "What to do: "), alarm.fix),
    );
  });
}
