// A table whose heads sort it. Rows keep their elements' focus through a redraw: a live update must not throw a
// keyboard user back to the top.

import { h, replace } from "./dom.js";

/** `columns`: [{key, name, num?, value(row), cell(row), head?}]; `identity(row)`: stays the same over updates. */
export class SortableTable {
  #columns;
  #identity;
  #rows = [];
  #sorted;
  #head;
  #body = h("tbody");

  constructor({ columns, identity, label, sortBy, descending = true, onSort }) {
    this.#columns = columns;
    this.#identity = identity;
    this.#sorted = { key: sortBy, descending };
    this.onSort = onSort; // when given, the rows come sorted already and this fetches them anew
    this.#head = h("tr");
    this.element = h(
      "div",
      { class: "scroll", role: "region", "aria-label": label, tabindex: "0" },
      h("table", {}, h("caption", { class: "unseen" }, label), h("thead", {}, this.#head), this.#body),
    );
    this.#drawHead();
  }

  set columns(columns) {
    this.#columns = columns;
    this.#drawHead();
  }

  show(rows) {
    this.#rows = rows;
    const focused = this.#focus();
    replace(
      this.#body,
      this.#ordered().map((row) => this.#row(row)),
    );
    if (focused) this.#refocus(focused);
  }

  #row(row) {
    const cells = this.#columns.map((column) => {
      const attributes = { class: [column.num && "num", column.class].filter(Boolean).join(" ") || undefined };
      const content = column.cell(row);
      return column.rowHead ? h("th", { scope: "row", ...attributes }, content) : h("td", attributes, content);
    });
    return h("tr", { data: { row: this.#identity(row) } }, cells);
  }

  #ordered() {
    const column = this.#columns.find((one) => one.key === this.#sorted.key);
    if (!column?.value || this.onSort) return this.#rows;
    const sign = this.#sorted.descending ? -1 : 1;
    return [...this.#rows].sort((a, b) => compare(column.value(a), column.value(b), sign));
  }

  #drawHead() {
    const cells = this.#columns.map((column) => {
      const on = column.key === this.#sorted.key;
      const direction = on ? (this.#sorted.descending ? "descending" : "ascending") : undefined;
      const sort = () => this.#sortBy(column);
      const name = column.head ?? column.name;
      const content =
        column.sortable === false ? name : h("button", { type: "button", class: "sort", onclick: sort }, name);
      return h(
        "th",
        { scope: "col", class: column.num && "num", "aria-sort": direction, data: { column: column.key } },
        content,
      );
    });
    replace(this.#head, cells);
  }

  #sortBy(column) {
    const same = this.#sorted.key === column.key;
    this.#sorted = { key: column.key, descending: same ? !this.#sorted.descending : Boolean(column.num) };
    this.#drawHead();
    this.#head.querySelector(`[data-column="${CSS.escape(column.key)}"] button`)?.focus();
    if (this.onSort) this.onSort(this.#sorted);
    else this.show(this.#rows);
  }

  #focus() {
    const active = document.activeElement;
    if (!active || !this.#body.contains(active)) return null;
    const row = active.closest("tr");
    return { row: row.dataset.row, place: [...row.querySelectorAll("a, button, input")].indexOf(active) };
  }

  #refocus({ row, place }) {
    const found = this.#body.querySelector(`tr[data-row="${CSS.escape(row)}"]`);
    found?.querySelectorAll("a, button, input")[place]?.focus({ preventScroll: true });
  }

  get sorted() {
    return this.#sorted;
  }

  /** Keys j and k: the link of the next or previous row. */
  move(by) {
    const rows = [...this.#body.rows];
    const at = rows.findIndex((row) => row.contains(document.activeElement));
    const next = rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by))];
    next?.querySelector("a")?.focus();
  }
}

function compare(a, b, sign) {
  const missing = (value) => value === null || value === undefined || value === "";
  if (missing(a) || missing(b)) return missing(a) - missing(b); // what is missing comes last, either way
  return sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
}
