// Numbers, times and sizes as a person reads them. What is missing is a dash, never "null" or "NaN".

const MISSING = "–";
const MINUS = "−";

export function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** Three significant digits for small numbers, thousands apart for large ones. */
export function number(value, digits = 3) {
  if (!isNumber(value)) return MISSING;
  const size = Math.abs(value);
  if (Number.isInteger(value) || size >= 1000) return minus(Math.round(value).toLocaleString("en-US"));
  if (size === 0) return "0";
  if (size < 0.001) return minus(value.toExponential(1));
  if (size >= 100) return minus(value.toFixed(1));
  return minus(size >= 1 ? value.toFixed(Math.max(0, digits - 1)) : value.toFixed(digits));
}

export function signed(value, digits = 3) {
  return isNumber(value) && value > 0 ? `+${number(value, digits)}` : number(value, digits);
}

export function percent(value) {
  return isNumber(value) ? `${minus((100 * value).toFixed(Math.abs(value) < 0.1 && value !== 0 ? 1 : 0))} %` : MISSING;
}

export function count(value, noun, plural = `${noun}s`) {
  return `${number(value)} ${value === 1 ? noun : plural}`;
}

export function duration(seconds) {
  if (!isNumber(seconds)) return MISSING;
  if (seconds < 0.0995) return `${(1000 * seconds).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${String(Math.floor(seconds % 60)).padStart(2, "0")} s`;
  const hours = Math.floor(seconds / 3600);
  if (hours < 48) return `${hours} h ${String(Math.floor((seconds % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function bytes(value) {
  if (!isNumber(value)) return MISSING;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = value < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log2(value) / 10));
  return `${number(value / 2 ** (10 * power), 3)} ${units[power]}`;
}

/** "14:03" today, "12 Nov 14:03" this year, with the year before. */
export function when(epoch) {
  if (!isNumber(epoch)) return MISSING;
  const date = new Date(epoch * 1000);
  const now = new Date();
  const clock = date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  if (date.toDateString() === now.toDateString()) return clock;
  const year = date.getFullYear() === now.getFullYear() ? undefined : "numeric";
  return `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short", year })} ${clock}`;
}

export function exactly(epoch) {
  return isNumber(epoch) ? new Date(epoch * 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC" : MISSING;
}

export function money(value) {
  return isNumber(value) ? value.toFixed(2) : MISSING;
}

/** With its interval: "0.31 [0.22, 0.40]". */
export function interval(value) {
  if (!value || !isNumber(value.mean)) return MISSING;
  return isNumber(value.low)
    ? `${number(value.mean)} [${number(value.low)}, ${number(value.high)}]`
    : number(value.mean);
}

/** "correct 36 %, reward 0.31": success first, where it is known. */
export function spokenResult(run) {
  const reward = `reward ${number(run.reward_last)}`;
  return isNumber(run.success_last) ? `${run.success_name ?? "success"} ${percent(run.success_last)}, ${reward}` : reward;
}

/** A metric in its unit, as the server names it. */
export function inUnit(value, unit) {
  if (unit === "s" || unit === "seconds") return duration(value);
  if (unit === "bytes" || unit === "B") return bytes(value);
  if (unit === "share") return percent(value);
  return unit && unit !== "reward" && isNumber(value) ? `${number(value)} ${unit}` : number(value);
}

function minus(text) {
  return text.replace(/^-/, MINUS);
}
