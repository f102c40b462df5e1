// Commands coloured by the server. Its markup is read by a parser that runs nothing, and of it only text and
// <span class="…"> are kept: whatever else should ever be in there becomes plain text.

import { h } from "./dom.js";

export function highlighted(html, text) {
  if (!html) return h("pre", { class: "code" }, text);
  const parsed = new DOMParser().parseFromString(html, "text/html");
  return h("pre", { class: "code" }, kept(parsed.body));
}

function kept(node) {
  return [...node.childNodes].map((child) => {
    if (child.nodeType === Node.TEXT_NODE) return child.data;
    if (child.nodeType !== Node.ELEMENT_NODE) return "";
    if (child.tagName !== "SPAN") return kept(child);
    return h("span", { class: child.getAttribute("class") ?? undefined }, kept(child));
  });
}
