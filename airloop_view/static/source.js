// Where a trajectory comes from, in words: "step_0003" is the fourth step, "evaluations/before" an evaluation.

export function sourceName(source) {
  const step = /^step_(\d+)$/.exec(source ?? "");
  if (step) return `step ${Number(step[1]) + 1}`;
  return (source ?? "").replace(/^evaluations\//, "evaluation ");
}

export function sourceOf(step) {
  return `step_${String(step).padStart(4, "0")}`;
}
