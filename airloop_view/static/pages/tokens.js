// Every token of a trajectory: what it was worth, how likely it was to sampler and trainer, and why it was trained
// on or not.

import { get } from "../api.js";
import { facts, h, replace } from "../dom.js";
import { isNumber, number, signed } from "../format.js";
import { filtersOf } from "../filters.js";
import { link, rewrite } from "../route.js";
import { SCALES, scaleFor } from "../scale.js";
import { TokenText } from "../token_text.js";

const LARGEST = 12; // tokens named beside the text
const MOST = 45_000; // tokens of one page
export const identity = (params) =>
  `${params.get("run")} ${params.get("id")} ${params.get("branch") ?? 0} ${params.get("offset") ?? 0}`;

export async function open(params, life) {
  const place = { run: params.get("run") ?? ".", id: params.get("id") ?? "" };
  const data = await allTokens(
    { ...place, branch: params.get("branch") ?? 0 },
    Number(params.get("offset")) || 0,
    life.signal,
  );
  const page = new TokensPage(place, data, params, life);
  return {
    title: `Tokens of ${place.id}`,
    nodes: page.nodes(),
    update: (now) => page.follow(now),
    shown: () => page.shown(),
  };
}

/** An answer holds some thousands; a branch may have more. */
async function allTokens(asked, offset, signal) {
  const data = await get("/api/tokens", { ...asked, offset }, signal);
  const end = Math.min(data.total ?? data.tokens.length, offset + MOST);
  while (offset + data.tokens.length < end) {
    const more = await get("/api/tokens", { ...asked, offset: offset + data.tokens.length }, signal);
    if (!more.tokens.length) break;
    data.tokens.push(...more.tokens);
  }
  return { ...data, offset };
}

class TokensPage {
  constructor(place, data, params, life) {
    Object.assign(this, { place, data, life });
    this.by = SCALES[params.get("by")] ? params.get("by") : "advantage";
    this.at = params.has("at") ? Number(params.get("at")) : null;
    this.filters = filtersOf(params);
    this.legend = h("ul", { class: "token-legend", "aria-label": "What the looks mean" });
    this.detail = h("section", { class: "card token-detail", "aria-live": "polite", "aria-label": "The token" });
    this.largest = h("section", { class: "card" });
    this.text = new TokenText(data.tokens, { onPoint: (i) => this.#tell(i), onPin: (i) => this.#pin(i) });
    this.picks = Object.entries(SCALES).map(([key, scale]) => this.#pick(key, scale));
    const back = () => (location.hash = link("trajectory", { ...place, ...this.filters }));
    life.keys([
      { keys: ["c"], says: "colour by the next number", act: () => this.#next() },
      { keys: ["u", "t"], says: "back to the conversation", act: back },
    ]);
  }

  nodes() {
    const { data, place } = this;
    const branches = Array.from({ length: data.branches ?? 1 }, (_, i) => i);
    this.#paint();
    this.#tell(-1);
    const trained = data.tokens.filter((token) => token.train).length;
    return [
      h(
        "div",
        { class: "head" },
        h(
          "ol",
          { class: "crumbs", "aria-label": "Where this is" },
          h("li", {}, h("a", { href: link("run", { run: place.run }) }, place.run === "." ? "this run" : place.run)),
          h("li", {}, h("a", { href: link("trajectory", { ...place, ...this.filters }) }, place.id)),
        ),
        h("h1", {}, "Tokens"),
        h(
          "span",
          { class: "muted" },
          `${number(data.total ?? data.tokens.length)} in all, ${number(trained)} of those below sampled`,
        ),
        branches.length > 1 &&
          h(
            "nav",
            { class: "branches", "aria-label": "Branches" },
            branches.map((i) =>
              h(
                "a",
                {
                  class: "button",
                  href: link("tokens", { ...place, branch: i, by: this.by }),
                  "aria-current": i === data.branch ? "true" : undefined,
                },
                `Branch ${i + 1}`,
              ),
            ),
          ),
        h("a", { class: "button end", href: link("trajectory", { ...place, ...this.filters }) }, "Conversation"),
      ),
      data.tokenizer !== "exact" &&
        h(
          "p",
          { class: "notice warn" },
          `The tokenizer is not here, so tokens are shown by their numbers (${data.tokenizer}).`,
        ),
      this.#parts(),
      h("fieldset", { class: "by" }, h("legend", {}, "Colour by"), this.picks),
      this.legend,
      data.tokens.length
        ? h(
            "div",
            { class: "reading" },
            this.text.element,
            h(
              "aside",
              { class: "side", "aria-label": "Numbers of the token", tabindex: "0" },
              this.detail,
              this.largest,
            ),
          )
        : h(
            "p",
            { class: "notice" },
            "No tokens are recorded: this trajectory was not sampled by the policy under training.",
          ),
    ];
  }

  shown() {
    if (this.at !== null) this.text.go(this.at - this.data.offset);
  }

  #parts() {
    const { total, offset, tokens } = this.data;
    if (!(total > tokens.length)) return null;
    const part = (name, from) =>
      from >= 0 && from < total
        ? h(
            "a",
            {
              class: "button",
              href: link("tokens", { ...this.place, branch: this.data.branch, by: this.by, offset: from }),
            },
            name,
          )
        : null;
    return h(
      "p",
      { class: "bar" },
      part("Before", offset - MOST),
      `Tokens ${number(offset + 1)} to ${number(offset + tokens.length)} of ${number(total)}`,
      part("After", offset + MOST),
    );
  }

  follow(params) {
    if (SCALES[params.get("by")] && params.get("by") !== this.by) this.#colourBy(params.get("by"));
    if (params.has("at") && Number(params.get("at")) !== this.at)
      this.text.go(Number(params.get("at")) - this.data.offset);
  }

  #pick(key, scale) {
    const known = scaleFor(key, this.data.tokens).known;
    const radio = h("input", { type: "radio", name: "by", value: key, onchange: () => this.#colourBy(key) });
    radio.checked = key === this.by;
    radio.disabled = !known;
    return h(
      "label",
      { class: known ? "" : "muted", title: known ? undefined : "not recorded for this trajectory" },
      radio,
      scale.name,
    );
  }

  #next() {
    const open = this.picks.map((label) => label.querySelector("input")).filter((radio) => !radio.disabled);
    const at = open.findIndex((radio) => radio.checked);
    this.#colourBy(open[(at + 1) % open.length].value);
    this.life.say(`coloured by ${SCALES[this.by].name}`);
  }

  #colourBy(by) {
    this.by = by;
    for (const label of this.picks) label.querySelector("input").checked = label.querySelector("input").value === by;
    this.#paint();
    this.#address();
  }

  #paint() {
    const { look, legend } = scaleFor(this.by, this.data.tokens);
    this.text.paint(look);
    replace(
      this.legend,
      legend.map(([kind, words]) => h("li", {}, h("span", { class: kind, "aria-hidden": "true" }, "token"), words)),
    );
    this.#nameLargest();
  }

  #nameLargest() {
    const scale = SCALES[this.by];
    const sized = this.data.tokens.map((token, i) => [i, scale.value(token)]).filter(([, value]) => isNumber(value));
    const alike = new Set(sized.map(([, value]) => value)).size < 2; // one advantage for all: none is larger
    if (scale.mask || alike) return replace(this.largest, h("h2", {}, "Why tokens are trained or not"), this.#tally());
    const top = sized.sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).slice(0, LARGEST);
    replace(
      this.largest,
      h("h2", {}, this.by === "logprob" || this.by === "trainer" ? "Least likely" : "Largest"),
      h(
        "ol",
        { class: "largest" },
        top.map(([i, value]) =>
          h(
            "li",
            {},
            h(
              "button",
              { type: "button", onclick: () => this.text.go(i) },
              h("code", {}, JSON.stringify(this.data.tokens[i].t)),
              h("span", { class: "muted" }, scale.signed ? signed(value) : number(value)),
            ),
          ),
        ),
      ),
    );
  }

  #tally() {
    const counts = new Map();
    for (const token of this.data.tokens) counts.set(token.why, (counts.get(token.why) ?? 0) + 1);
    const rows = [...counts].sort((a, b) => b[1] - a[1]);
    return h(
      "ul",
      { class: "tally" },
      rows.map(([why, n]) =>
        h("li", {}, h("strong", {}, number(n)), " ", this.data.reasons[why] ?? "no reason recorded"),
      ),
    );
  }

  #tell(index) {
    const token = this.data.tokens[index];
    if (!token)
      return replace(
        this.detail,
        h("h2", {}, "A token"),
        h("p", { class: "muted" }, "Point at one, or press Tab and walk with the arrow keys."),
      );
    const chance = isNumber(token.lp) ? `${number(token.lp, 4)}  (p ${number(Math.exp(token.lp))})` : null;
    const trainer = isNumber(token.tlp) ? `${number(token.tlp, 4)}  (p ${number(Math.exp(token.tlp))})` : null;
    replace(
      this.detail,
      h("h2", {}, h("code", { class: "the-token" }, JSON.stringify(token.t))),
      h("p", {}, this.data.reasons[token.why] ?? ""),
      facts([
        ["Advantage", isNumber(token.adv) ? signed(token.adv, 4) : "–"],
        ["Sampler log-prob", chance ?? "–"],
        ["Trainer log-prob", trainer ?? "–"],
        ["Gap", isNumber(token.gap) ? signed(token.gap, 4) : "–"],
        ["Entropy", isNumber(token.entropy) ? `${number(token.entropy)} nats` : "–"],
        ["Train mask", token.train ? "on: sampled" : "off: shown to the model"],
        ["Policy version", isNumber(token.version) ? number(token.version) : "–"],
        [
          "Turn",
          token.turn >= 0
            ? h(
                "a",
                { href: link("trajectory", { ...this.place, ...this.filters, turn: token.turn + 1 }) },
                token.turn + 1,
              )
            : "none",
        ],
        ["Place", `${number(this.data.offset + index + 1)} of ${number(this.data.total)}`],
        ["Token id", String(token.id)],
      ]),
    );
  }

  #pin(index) {
    this.at = index + this.data.offset;
    this.#address();
  }

  #address() {
    rewrite("tokens", {
      ...this.place,
      branch: this.data.branch || null,
      offset: this.data.offset || null,
      by: this.by,
      at: this.at,
      ...this.filters,
    });
  }
}
