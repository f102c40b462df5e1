// Elements are made here and nowhere else. Text goes in as text, with what cannot be seen in it made visible: there is
// no way through this file for data to become markup, a script or a style attribute.

import { visible } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";
const SPOKEN = new Set(["title", "aria-label"]);
const SAFE_LINK = /^(#|\/(?!\/)|https?:\/\/)/;

export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

export function replace(parent, ...children) {
  parent.replaceChildren(...readable(children));
  return parent;
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "value" || name === "checked") element[name] = value;
    else if (name === "href" && !SAFE_LINK.test(value))
      continue; // "javascript:…" in somebody's data
    else element.setAttribute(name, value === true ? "" : SPOKEN.has(name) ? visible(value) : value);
  }
  element.append(...readable(children));
  return element;
}

function readable(children) {
  return children
    .flat(Infinity)
    .filter(isThere)
    .map((child) => (typeof child === "string" ? visible(child) : child));
}

function isThere(child) {
  return child !== null && child !== undefined && child !== false;
}

/** A definition list in two columns; entries whose value is missing are left out. */
export function facts(entries) {
  const rows = entries.filter(([, value]) => isThere(value) && value !== "");
  return h(
    "dl",
    { class: "facts" },
    rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}

/** A small SVG picture with a name for those who do not see it. */
export function picture(width, height, label, ...children) {
  const box = { class: "picture", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label };
  return svg("svg", box, ...children);
}
