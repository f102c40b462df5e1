// How a run stands, in a word with its colour and its shape: a dot that is filled while something happens.

import { h } from "./dom.js";

const TONES = {
  running: "accent",
  completed: "good",
  failed: "bad",
  killed: "bad",
  stopped: "warn",
  paused: "warn",
};

export function statusChip(results) {
  const status = results.status ?? "unknown";
  const why = status === "killed" ? "it says it runs, but no process holds it" : results.why;
  return h("span", { class: `chip status ${TONES[status] ?? ""}`, title: why || undefined, data: { status } }, status);
}

export function endingChip(ending) {
  const tone = { done: "good", infra_error: "bad" }[ending] ?? (ending ? "warn" : "");
  return h("span", { class: `chip ${tone}` }, (ending ?? "unknown").replaceAll("_", " "));
}

export function severityChip(severity) {
  return h(
    "span",
    { class: `chip ${{ stop: "bad", fail: "bad", pause: "warn", warn: "warn", pass: "good" }[severity] ?? ""}` },
    severity,
  );
}
