// The resolved config: what changed since the parent run, then all of it.

import { h, replace } from "./dom.js";
import { link } from "./route.js";
import { dataTable } from "./table.js";

export function configPart(data) {
  return [changes(data), all(data.config ?? [])];
}

function changes({ config_diff: diff, parent, results }) {
  if (!parent) return null;
  const name = h("a", { href: link("run", { run: parent }) }, results.parent ?? parent);
  if (!diff) return h("p", { class: "notice warn" }, "Its parent’s config cannot be read.");
  if (!diff.length) return h("p", { class: "notice" }, "The same config as its parent ", name, ".");
  const rows = diff.map((one) =>
    h(
      "tr",
      {},
      h("th", { scope: "row", class: "mono" }, one.key),
      h("td", { class: "long del" }, text(one.parent)),
      h("td", { class: "long ins" }, text(one.here)),
    ),
  );
  return h(
    "section",
    { class: "config" },
    h("h2", {}, "Changed since ", name),
    dataTable("Changed since its parent", ["Key", results.parent ?? "Parent", "Here"], rows),
  );
}

function all(config) {
  const body = h("tbody");
  const draw = (wanted) => {
    const shown = config.filter(([key, value]) => `${key} ${value}`.toLowerCase().includes(wanted));
    replace(
      body,
      shown.map(([key, value]) =>
        h("tr", {}, h("th", { scope: "row", class: "mono" }, key), h("td", { class: "long" }, value)),
      ),
    );
  };
  draw("");
  if (!config.length) return h("p", { class: "notice" }, "There is no config here: this was not made by air train.");
  return h(
    "section",
    { class: "config" },
    h(
      "div",
      { class: "bar" },
      h("h2", {}, "The whole config"),
      h("input", {
        type: "search",
        "aria-label": "Filter keys",
        placeholder: "Filter keys",
        oninput: (event) => draw(event.target.value.toLowerCase()),
      }),
    ),
    dataTable("The whole config", ["Key", "Value"], body),
  );
}

function text(value) {
  if (value === null || value === undefined) return "not set";
  return typeof value === "string" ? value : JSON.stringify(value);
}
