// Where a turn's time went: waiting for the engine, in the model, in the environment. Each part has its pattern.

import { h } from "./dom.js";
import { duration, isNumber } from "./format.js";

export const CAUSES = [
  ["queue", "waiting"],
  ["model", "model"],
  ["tool", "tool"],
];

/** `longest`: seconds of the slowest turn, so that bars of one trajectory can be compared. */
export function timeBar(times, longest) {
  const parts = CAUSES.map(([key, word]) => [key, word, times?.[key]]).filter(
    ([, , seconds]) => isNumber(seconds) && seconds > 0,
  );
  const total = parts.reduce((sum, [, , seconds]) => sum + seconds, 0);
  if (!total) return null;
  const label = parts.map(([, word, seconds]) => `${word} ${duration(seconds)}`).join(", ");
  const bar = h(
    "span",
    { class: "timebar", role: "img", "aria-label": `${duration(total)}: ${label}`, title: label },
    parts.map(([key, , seconds]) => {
      const part = h("span", { class: `time-${key}` });
      part.style.setProperty("flex-grow", seconds / total);
      return part;
    }),
  );
  bar.style.setProperty("width", `${Math.max(3, (100 * total) / (longest || total))}%`);
  return bar;
}

export function totalTime(times) {
  return isNumber(times?.total) ? times.total : CAUSES.reduce((sum, [key]) => sum + (times?.[key] ?? 0), 0);
}

export function timeLegend() {
  return h(
    "span",
    { class: "time-legend muted" },
    CAUSES.map(([key, word]) => h("span", {}, h("span", { class: `key time-${key}`, "aria-hidden": "true" }), word)),
  );
}
