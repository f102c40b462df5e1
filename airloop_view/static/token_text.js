// The tokens as text that can be walked through: thousands of small spans in blocks that the browser skips while they
// are out of sight, one set of listeners for all, and one of them in the tab order at a time.

import { h } from "./dom.js";
import { visibleToken } from "./text.js";

const BLOCK = 400; // tokens that are laid out together

export class TokenText {
  #spans = [];
  #at = -1;

  /** `onPoint(index)` while the pointer or the keyboard is at a token; `onPin(index)` when it is chosen. */
  constructor(tokens, { onPoint, onPin }) {
    this.tokens = tokens;
    this.onPoint = onPoint;
    this.onPin = onPin;
    this.element = h(
      "div",
      {
        class: "tokens",
        role: "group",
        "aria-label": "Tokens. Arrow keys go from token to token; the panel beside says each one’s numbers.",
      },
      this.#blocks(),
    );
    this.element.addEventListener("pointerover", (event) => this.#pointed(event));
    this.element.addEventListener("pointerleave", () => this.onPoint(this.#at));
    this.element.addEventListener(
      "click",
      (event) => event.target.dataset?.i && this.go(Number(event.target.dataset.i)),
    );
    this.element.addEventListener(
      "focusin",
      (event) => event.target.dataset?.i && this.#focused(Number(event.target.dataset.i)),
    );
    this.element.addEventListener("keydown", (event) => this.#key(event));
    if (tokens.length) this.#spans[0].tabIndex = 0;
  }

  paint(look) {
    this.tokens.forEach((token, i) => (this.#spans[i].className = look(token)));
  }

  go(index) {
    const span = this.#spans[Math.max(0, Math.min(this.#spans.length - 1, index))];
    if (!span) return;
    span.tabIndex = -1; // only what has one can be focused; see #focused for the one that Tab stops at
    span.scrollIntoView({ block: "nearest" });
    span.focus({ preventScroll: true });
  }

  #blocks() {
    const blocks = [];
    let block = null;
    this.tokens.forEach((token, i) => {
      const starts = i === 0 || token.turn !== this.tokens[i - 1].turn;
      if (starts || block.size >= BLOCK) {
        block = { size: 0, text: h("span", { class: "token-block" }) };
        const name = token.turn < 0 ? "shown" : `turn ${token.turn + 1}`;
        blocks.push(
          h(
            "div",
            { class: token.turn < 0 ? "run-of shown-run" : "run-of" },
            h("span", { class: "run-name" }, starts ? name : ""),
            block.text,
          ),
        );
      }
      const span = document.createElement("span");
      span.dataset.i = i;
      span.textContent = visibleToken(token.t);
      this.#spans.push(span);
      block.text.append(span);
      block.size += 1;
    });
    return blocks;
  }

  #pointed(event) {
    const index = event.target.dataset?.i;
    if (index !== undefined) this.onPoint(Number(index));
  }

  #focused(index) {
    this.#spans[Math.max(0, this.#at)].tabIndex = -1;
    this.#at = index;
    this.#spans[index].tabIndex = 0;
    this.onPoint(index);
    this.onPin(index);
  }

  #key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const to = {
      ArrowRight: () => this.#at + 1,
      ArrowLeft: () => this.#at - 1,
      ArrowDown: () => this.#line(1),
      ArrowUp: () => this.#line(-1),
      Home: () => 0,
      End: () => this.tokens.length - 1,
    }[event.key];
    if (!to) return;
    event.preventDefault();
    this.go(to());
  }

  /** The token nearest to this one in the line above or below. */
  #line(by) {
    const here = this.#spans[this.#at].getBoundingClientRect();
    let best = this.#at;
    let line = null;
    for (let i = this.#at + by; i >= 0 && i < this.#spans.length; i += by) {
      const box = this.#spans[i].getClientRects()[0];
      if (!box || Math.abs(box.top - here.top) < 4) continue;
      line ??= box.top;
      if (Math.abs(box.top - line) > 4) break;
      const nearer =
        best === this.#at ||
        Math.abs(box.left - here.left) < Math.abs(this.#spans[best].getClientRects()[0].left - here.left);
      if (nearer) best = i;
    }
    return best;
  }
}
