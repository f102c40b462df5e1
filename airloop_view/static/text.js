// Text of a model or a tool as it is safe and honest to show: colour codes of terminals are taken out, and what a
// reader could not see or would be fooled by (control characters, marks that reverse the order of writing) is named.

const COLOUR_CODES = /\u001b\[[0-9;:]*[mK]/g;
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f]/g;
const HIDDEN = /[\u0080-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

export function visible(text) {
  return String(text ?? "")
    .replace(/\r\n/g, "\n")
    .replace(COLOUR_CODES, "")
    .replace(CONTROL, pictured)
    .replace(HIDDEN, named);
}

/** One token: nothing may be left out, and a line's end must be seen. */
export function visibleToken(text) {
  const shown = String(text ?? "")
    .replace(CONTROL, pictured)
    .replace(HIDDEN, named)
    .replaceAll("\t", "⇥");
  return shown === "" ? "∅" : shown.replaceAll("\n", "↵\n");
}

function pictured(character) {
  const code = character.charCodeAt(0);
  return String.fromCharCode(code === 0x7f ? 0x2421 : 0x2400 + code);
}

function named(character) {
  return `⟨U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

export function firstLine(text, length = 140) {
  const line = visible(text).trim().split("\n", 1)[0];
  return line.length > length ? `${line.slice(0, length)}…` : line;
}
