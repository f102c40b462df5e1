// How a token's number becomes its look. Size is the thickness of a bar and the depth of a fill; sign is the bar's side
// (below: positive; above: negative): the look says the same without any colour.
// Bounds are fixed, so that two pages can be compared; only advantages take their scale from the trajectory.

import { isNumber, number, signed } from "./format.js";

const PROBABILITY = [0.9, 0.5, 0.1, 0.01];

export const SCALES = {
  advantage: { name: "Advantage", value: (token) => token.adv, signed: true, bounds: null },
  logprob: {
    name: "Log-prob, sampler",
    value: (token) => token.lp,
    bounds: PROBABILITY.map((p) => -Math.log(p)),
    size: (value) => -value,
    words: ["p over 0.9", "over 0.5", "over 0.1", "over 0.01", "p at most 0.01"],
  },
  trainer: {
    name: "Log-prob, trainer",
    value: (token) => token.tlp,
    bounds: PROBABILITY.map((p) => -Math.log(p)),
    size: (value) => -value,
    words: ["p over 0.9", "over 0.5", "over 0.1", "over 0.01", "p at most 0.01"],
  },
  gap: { name: "Gap, trainer − sampler", value: (token) => token.gap, signed: true, bounds: [0.01, 0.05, 0.2, 0.5] },
  entropy: {
    name: "Entropy",
    value: (token) => token.entropy,
    bounds: [0.1, 0.5, 1, 2],
    words: ["under 0.1 nats", "to 0.5", "to 1", "to 2", "over 2 nats"],
  },
  mask: { name: "Mask", value: (token) => (token.train ? 1 : null), bounds: null, mask: true },
};

/** For the tokens of one branch: {look(token) → class, legend: [[class, words]], known: whether any has a number}. */
export function scaleFor(by, tokens) {
  const scale = SCALES[by] ?? SCALES.advantage;
  if (scale.mask) {
    const look = (token) => (token.train ? "t-mask" : "t-none");
    return {
      look,
      legend: [
        ["t-mask", "sampled: in the train mask"],
        ["t-none", "shown to the model: masked out"],
      ],
      known: true,
    };
  }
  const values = tokens.map(scale.value).filter(isNumber);
  const bounds = scale.bounds ?? quarters(values);
  const level = (value) => bounds.filter((bound) => (scale.size ? scale.size(value) : Math.abs(value)) >= bound).length;
  const look = (token) => {
    const value = scale.value(token);
    if (!isNumber(value)) return "t-none";
    return `t-${scale.signed && value < 0 ? "down" : "up"}-${level(value)}`;
  };
  const legend = scale.signed
    ? signedLegend(bounds, !scale.bounds)
    : scale.words.map((words, i) => [`t-up-${i}`, words]);
  return { look, legend: [...legend, ["t-none", "no number: not sampled, or not recorded"]], known: values.length > 0 };
}

function signedLegend(bounds, fromZero) {
  const words = (i, sign) => {
    const edge = signed(sign * bounds[i]);
    if (i === 0 && fromZero) return sign < 0 ? "below 0" : "above 0";
    return i < bounds.length - 1 ? `from ${edge}` : `${edge} and ${sign < 0 ? "below" : "above"}`;
  };
  const down = bounds.map((_, i) => [`t-down-${i + 1}`, words(i, -1)]).reverse();
  const up = bounds.map((_, i) => [`t-up-${i + 1}`, words(i, 1)]);
  return [...down, ["t-up-0", fromZero ? "zero" : `within ±${number(bounds[0])}`], ...up];
}

/** Anything but zero, then quarters of the largest size: four levels a side. */
function quarters(values) {
  const most = values.reduce((largest, value) => Math.max(largest, Math.abs(value)), 0) || 1;
  return [1e-12, 0.25 * most, 0.5 * most, 0.75 * most];
}
