// Curves, drawn by Plotly. The library is large and comes after the first paint; a curve is drawn when it is scrolled
// into sight. What a curve shows is also in words (its label) and in a table (opened with the curve in large).

import { h, replace } from "./dom.js";
import { inUnit, isNumber, number } from "./format.js";
import { dataTable } from "./table.js";
import { colour, onTheme } from "./theme.js";

const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const PATTERNS = ["", "/", ".", "\\", "x", "-"];
const SERIES = 8;
let loading;

function library() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "/plotly.js";
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("the plotting library could not be loaded from this server"));
    document.head.append(script);
  });
  return loading;
}

/** `spec`: {title, about?, unit, series: [{name, x, y}], marks: [{x, text}], at?, stacked?, onPick?}. */
export class Chart {
  #spec;
  #drawn = false;
  #box = h("div", { class: "plot" });
  #ends = [];

  constructor(spec, life, { large = false } = {}) {
    this.#spec = spec;
    this.large = large;
    this.life = life;
    const button = h(
      "button",
      {
        type: "button",
        class: "plot-title",
        title: spec.about ?? "In large, with its numbers",
        "aria-label": `${spec.title}: in large`,
        onclick: () => enlarge(this.#spec, life),
      },
      spec.title,
    );
    this.#label();
    const value = h("span", { class: "muted plot-last" }, lastValue(spec));
    this.element = h(
      "figure",
      { class: large ? "chart large" : "chart" },
      large ? null : h("figcaption", {}, button, value),
      this.#box,
    );
    this.last = value;
    this.#watch();
    life.atEnd(() => this.end());
  }

  update(spec) {
    this.#spec = { ...this.#spec, ...spec };
    this.#label();
    this.last.textContent = lastValue(this.#spec);
    if (this.#drawn) this.#draw();
  }

  end() {
    for (const act of this.#ends.splice(0)) act();
    if (this.#drawn) window.Plotly?.purge(this.#box);
    this.#drawn = false;
  }

  #label() {
    this.#box.setAttribute("role", "img");
    this.#box.setAttribute("aria-label", inWords(this.#spec));
  }

  #watch() {
    const observer = new IntersectionObserver(
      (entries) => {
        if (!entries.some((entry) => entry.isIntersecting)) return;
        observer.disconnect();
        this.#draw();
      },
      { rootMargin: "200px" },
    );
    observer.observe(this.#box);
    this.#ends.push(
      () => observer.disconnect(),
      onTheme(() => this.#drawn && this.#draw()),
    );
  }

  async #draw() {
    try {
      const Plotly = await library();
      if (this.life.signal.aborted || !this.#box.isConnected) return;
      const first = !this.#drawn;
      this.#drawn = true;
      await Plotly.react(this.#box, traces(this.#spec), layout(this.#spec, this.large), {
        displayModeBar: false,
        responsive: true,
      });
      if (first && this.#spec.onPick) this.#box.on("plotly_click", (event) => this.#spec.onPick(event.points[0].x));
    } catch (error) {
      replace(this.#box, h("p", { class: "muted" }, `No picture: ${error.message}.`));
    }
  }
}

function traces(spec) {
  return spec.series.map((one, i) => {
    const line = colour(`series-${(one.colour ?? i) % SERIES}`);
    const shape = spec.stacked
      ? {
          stackgroup: "all",
          fillcolor: faded(line),
          fillpattern: { shape: PATTERNS[i % PATTERNS.length], fgcolor: line, fgopacity: 0.5, size: 7 },
          line: { width: 1, color: line },
        }
      : {
          line: {
            width: 1.7,
            color: line,
            dash: spec.series.length > 1 ? DASHES[(one.colour ?? i) % DASHES.length] : "solid",
          },
        };
    const few = one.x.length < 25 && !spec.stacked;
    const hover = `%{y:.4~g}${spec.unit ? ` ${spec.unit}` : ""}<extra>${spec.series.length > 1 ? plainText(one.name) : ""}</extra>`;
    return {
      type: "scatter",
      mode: few ? "lines+markers" : "lines",
      marker: { size: 4, color: line },
      name: plainText(one.name),
      x: one.x,
      y: one.y,
      hovertemplate: hover,
      ...shape,
    };
  });
}

function layout(spec, large) {
  const [ink, muted, line, surface] = ["ink", "muted", "line", "surface"].map(colour);
  const font = { family: getComputedStyle(document.body).fontFamily, size: 11, color: muted };
  const axis = {
    gridcolor: line,
    linecolor: line,
    zerolinecolor: muted,
    zerolinewidth: 1,
    tickfont: font,
    fixedrange: !large,
    automargin: false,
  };
  const steps = spec.series.flatMap((one) => one.x);
  const span = steps.length ? Math.max(...steps) - Math.min(...steps) : 0;
  return {
    paper_bgcolor: surface,
    plot_bgcolor: surface,
    font,
    autosize: true,
    margin: large ? { l: 58, r: 14, t: 10, b: 40 } : { l: 46, r: 10, t: 6, b: 22 },
    showlegend: large && spec.series.length > 1,
    legend: { orientation: "h", y: 1.08, font: { ...font, color: ink } },
    hovermode: "x unified",
    hoverlabel: { bgcolor: surface, bordercolor: line, font: { ...font, color: ink } },
    xaxis: {
      ...axis,
      showgrid: false,
      dtick: span <= 8 ? 1 : undefined,
      nticks: large ? undefined : 6,
      title: large ? { text: "step", font } : undefined,
    },
    yaxis: {
      ...axis,
      nticks: large ? undefined : 4,
      rangemode: spec.stacked ? "tozero" : "normal",
      title: large && spec.unit ? { text: spec.unit, font } : undefined,
    },
    shapes: [
      ...(spec.marks ?? []).map((mark) => upright(mark.x, colour("warn"), "dot")),
      ...(isNumber(spec.at) ? [upright(spec.at, colour("accent"), "solid")] : []),
    ],
  };
}

function upright(x, stroke, dash) {
  return {
    type: "line",
    x0: x,
    x1: x,
    y0: 0,
    y1: 1,
    yref: "paper",
    line: { color: stroke, width: 1.2, dash },
    layer: "below",
  };
}

function enlarge(spec, life) {
  const chart = new Chart(spec, life, { large: true });
  const dialog = h(
    "dialog",
    { class: "enlarged", "aria-label": spec.title },
    h(
      "div",
      { class: "head" },
      h("h2", {}, spec.title),
      spec.unit && spec.unit !== spec.title && h("span", { class: "muted" }, spec.unit),
      h("form", { method: "dialog", class: "end" }, h("button", { type: "submit" }, "Close")),
    ),
    spec.about && h("p", { class: "muted" }, spec.about),
    chart.element,
    numbers(spec),
  );
  dialog.addEventListener("close", () => {
    chart.end();
    dialog.remove();
  });
  document.body.append(dialog);
  dialog.showModal();
}

function numbers(spec) {
  const steps = [...new Set(spec.series.flatMap((one) => one.x))].sort((a, b) => a - b);
  const found = spec.series.map((one) => new Map(one.x.map((x, i) => [x, one.y[i]])));
  const rows = steps.map((x) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, number(x)),
      found.map((values) => h("td", { class: "num" }, number(values.get(x), 4))),
    ),
  );
  return dataTable("The numbers", ["Step", ...spec.series.map((one) => `${one.name}#`)], rows);
}

function lastValue(spec) {
  if (spec.series.length !== 1) return "";
  return inUnit(spec.series[0].y.findLast(isNumber), spec.unit);
}

function inWords(spec) {
  const parts = spec.series.map((one) => {
    const known = one.y.filter(isNumber);
    if (!known.length) return `${one.name}: no values`;
    const range = `from ${number(known[0])} to ${number(known.at(-1))} over ${known.length} steps, between ${number(Math.min(...known))} and ${number(Math.max(...known))}`;
    return spec.series.length > 1 ? `${one.name} ${range}` : range;
  });
  return `${spec.title}: ${parts.join("; ")}`;
}

/** Plotly reads some markup in names; a run or a task may be called anything. */
function plainText(name) {
  return String(name).replace(/[<>&{}%$]/g, " ");
}

function faded(rgb) {
  return rgb
    .replace(/^rgb\((.*)\)$/, "rgba($1, 0.28)")
    .replaceAll(" ", "")
    .replace(/^rgba\((.*)\)$/, "rgba($1)");
}
