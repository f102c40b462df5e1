// A plain table that scrolls sideways within itself when it is too wide.

import { h } from "./dom.js";

/** `heads`: names; one that ends in "#" heads a column of numbers. `rows`: <tr> elements, or a <tbody>. */
export function dataTable(label, heads, rows) {
  const cells = heads.map((name) => {
    const numeric = name.endsWith("#");
    return h("th", { scope: "col", class: numeric && "num" }, numeric ? name.slice(0, -1) : name);
  });
  const body = rows instanceof Element ? rows : h("tbody", {}, rows);
  const table = h("table", {}, h("caption", { class: "unseen" }, label), h("thead", {}, h("tr", {}, cells)), body);
  return h("div", { class: "scroll fit", tabindex: "0", role: "region", "aria-label": label }, table);
}
