// Small pictures drawn here, so that tables need no plotting library: a trend, an interval, a row of dots.

import { picture, svg } from "./dom.js";
import { interval, isNumber, number } from "./format.js";

export function sparkline(values, { width = 110, height = 22, name = "reward" } = {}) {
  const known = (values ?? []).filter(isNumber);
  if (known.length < 2) return null;
  const place = scale(Math.min(...known), Math.max(...known), height - 3, 3);
  const step = (width - 6) / (values.length - 1);
  const points = values.map((value, i) => (isNumber(value) ? [3 + i * step, place(value)] : null));
  const path = points
    .map((p, i) => (p ? `${i && points[i - 1] ? "L" : "M"}${p[0].toFixed(1)} ${p[1].toFixed(1)}` : ""))
    .join("");
  const last = points.findLast((p) => p);
  const label = `${name} from ${number(known[0])} to ${number(known.at(-1))}, lowest ${number(Math.min(...known))}, highest ${number(Math.max(...known))}`;
  return picture(
    width,
    height,
    label,
    svg("path", { d: path, class: "trend" }),
    svg("circle", { cx: last[0], cy: last[1], r: 2.4, class: "trend-end" }),
  );
}

/** Mean with whiskers, on a scale shared by the rows of a table: [lowest, highest]. */
export function whisker(value, [low, high], { width = 180, height = 18 } = {}) {
  if (!value || !isNumber(value.mean)) return null;
  const place = scale(low, high, 6, width - 6);
  const middle = height / 2;
  const bounded = isNumber(value.low) && isNumber(value.high);
  const zero = low < 0 && high > 0 && svg("line", { x1: place(0), x2: place(0), y1: 1, y2: height - 1, class: "zero" });
  const line =
    bounded && svg("line", { x1: place(value.low), x2: place(value.high), y1: middle, y2: middle, class: "whisker" });
  return picture(
    width,
    height,
    interval(value),
    zero,
    line,
    svg("circle", { cx: place(value.mean), cy: middle, r: 3.6, class: "mean" }),
  );
}

/** Rewards of a group's members on one line; the bar is their mean. */
export function dots(values, [low, high], { width = 150, height = 18 } = {}) {
  const known = values.filter(isNumber);
  if (!known.length) return null;
  const place = scale(low, high, 6, width - 6);
  const mean = known.reduce((a, b) => a + b, 0) / known.length;
  const label = `rewards ${known.map((value) => number(value)).join(", ")}; mean ${number(mean)}`;
  return picture(
    width,
    height,
    label,
    svg("line", { x1: 6, x2: width - 6, y1: height / 2, y2: height / 2, class: "axis" }),
    svg("line", { x1: place(mean), x2: place(mean), y1: 2, y2: height - 2, class: "mean-bar" }),
    known.map((value) => svg("circle", { cx: place(value), cy: height / 2, r: 3.4, class: "dot" })),
  );
}

export function extent(values) {
  const known = values.filter(isNumber);
  return known.length ? [Math.min(...known), Math.max(...known)] : [0, 1];
}

function scale(low, high, from, to) {
  if (high - low < 1e-12) return () => (from + to) / 2;
  return (value) => from + ((value - low) / (high - low)) * (to - from);
}
