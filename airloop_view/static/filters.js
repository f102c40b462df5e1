// Which trajectories: the same words in the list's form, in its address, in what the server is asked, and in the
// address of a trajectory that was opened from a list, so that next and previous stay within it.

import { h } from "./dom.js";
import { sourceName } from "./source.js";

export const FILTERS = [
  "in",
  "q",
  "task",
  "source",
  "version",
  "ending",
  "fate",
  "min",
  "max",
  "alarm",
  "sort",
  "desc",
];

/** "in=all": the list was over all runs, so next and previous go through them too. */
export function neighbourQuery(filters, place) {
  const { in: over, ...rest } = filters;
  return over ? { ...rest, ...place, in: " " } : { ...rest, ...place };
}

export function filtersOf(params) {
  return Object.fromEntries(FILTERS.filter((name) => params.get(name)).map((name) => [name, params.get(name)]));
}

const ENDINGS = ["done", "max_turns", "context_full", "deadline", "infra_error"];

/** The form. `facets` are of one run; `onChange(values)` when anything was typed or picked. */
export function filterForm({ values, runs, run, facets, onChange }) {
  const form = h("form", {
    class: "bar filters",
    role: "search",
    "aria-label": "Filter trajectories",
    onsubmit: (event) => event.preventDefault(),
  });
  const tell = () => onChange(Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== "")));
  let timer;
  const later = () => {
    clearTimeout(timer);
    timer = setTimeout(tell, 180);
  };
  const pick = (label, name, options) =>
    options.length > 1 || values[name] ? field(label, select(name, options, values[name], tell)) : null;
  const versions = facets?.versions?.length === 2 ? range(facets.versions[0], facets.versions[1]) : [];
  form.append(
    ...[
      h("input", {
        type: "search",
        name: "q",
        value: values.q ?? "",
        placeholder: "Search the text",
        "aria-label": "Search in the text of trajectories",
        oninput: later,
      }),
      runs.length > 1 &&
        field(
          "Run",
          select(
            "run",
            runs.map((one) => [one.id, one.name]),
            run,
            tell,
          ),
        ),
      pick(
        "From",
        "source",
        (facets?.sources ?? []).map((source) => [source, sourceName(source)]),
      ),
      pick("Task", "task", facets?.tasks ?? []),
      pick("Ending", "ending", facets?.endings ?? ENDINGS),
      pick("Fate", "fate", facets?.fates ?? []),
      pick("Policy version", "version", versions),
      pick("Alarm", "alarm", facets?.alarms?.length ? ["any", ...facets.alarms] : []),
      field(
        "Reward from",
        h("input", { type: "number", name: "min", step: "any", value: values.min ?? "", oninput: later }),
      ),
      field("to", h("input", { type: "number", name: "max", step: "any", value: values.max ?? "", oninput: later })),
      h("button", { type: "button", class: "quiet", onclick: () => clear(form, tell) }, "Clear"),
    ].filter(Boolean),
  );
  return form;
}

function clear(form, tell) {
  for (const control of form.elements) if (control.name && control.name !== "run") control.value = "";
  tell();
}

function field(label, control) {
  control.id = `filter-${control.name}`;
  return h("span", { class: "field" }, h("label", { for: control.id }, label), control);
}

function select(name, options, chosen, tell) {
  const pairs = options.map((one) => (Array.isArray(one) ? one : [String(one), String(one).replaceAll("_", " ")]));
  if (chosen && !pairs.some(([value]) => value === chosen)) pairs.unshift([chosen, chosen]);
  const choices = [["", "all"], ...pairs].map(([value, text]) => {
    const option = h("option", { value }, text);
    option.selected = value === (chosen ?? "");
    return option;
  });
  return h("select", { name, onchange: tell }, choices);
}

function range(low, high) {
  const most = 300; // policy versions; a longer list is no longer picked from
  if (!Number.isInteger(low) || high - low > most) return [];
  return Array.from({ length: high - low + 1 }, (_, i) => String(low + i));
}
