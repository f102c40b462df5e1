// The page's start: which page an address means, and the change from one to the next.

import { get, unlessExpected } from "./api.js";
import { h, replace } from "./dom.js";
import { number } from "./format.js";
import { openHelp } from "./help.js";
import { startKeys, useKeys } from "./keys.js";
import { onChange, startLive } from "./live.js";
import { currentRoute } from "./route.js";
import { startTheme } from "./theme.js";

// A page is a module with `identity(params)`: the part of the address that decides what is fetched; and
// `open(params, life)` → {title, nodes, shown?(), update?(params)}: `update` follows the rest of the address.
const PAGES = {
  "": () => import("./pages/runs.js"),
  run: () => import("./pages/run.js"),
  compare: () => import("./pages/compare.js"),
  list: () => import("./pages/list.js"),
  group: () => import("./pages/group.js"),
  trajectory: () => import("./pages/trajectory.js"),
  tokens: () => import("./pages/tokens.js"),
};
const PROGRESS_AFTER_MS = 150; // what takes less needs no sign

const main = document.getElementById("main");
const progress = document.getElementById("progress");
const said = document.getElementById("said");
let now = null; // {page, identity, opened, life}
let wanted = 0;
let stopWatching = null;

/** What belongs to a shown page and ends with it. */
class Life {
  #ends = [];
  #control = new AbortController();
  signal = this.#control.signal;

  keys(known) {
    this.atEnd(useKeys(known));
  }

  onChange(listener) {
    this.atEnd(onChange(listener));
  }

  atEnd(act) {
    this.#ends.push(act);
  }

  say(text) {
    said.textContent = text;
  }

  end() {
    this.#control.abort();
    for (const act of this.#ends.splice(0)) act();
  }
}

async function go() {
  const turn = ++wanted; // whatever is still being fetched for an earlier address is not shown any more
  const { page, params } = currentRoute();
  main.setAttribute("aria-busy", "true");
  const module = PAGES[page] ? await PAGES[page]() : null;
  if (turn !== wanted) return;
  const identity = module ? `${page} ${module.identity(params)}` : page;
  if (now?.identity === identity && now.opened?.update) {
    await Promise.resolve(now.opened.update(params)).catch(unlessExpected);
    if (turn === wanted) main.setAttribute("aria-busy", "false");
    return;
  }
  const slow = setTimeout(() => (progress.hidden = false), PROGRESS_AFTER_MS);
  const life = new Life();
  let opened;
  try {
    opened = module ? await module.open(params, life) : nowhere(page);
  } catch (error) {
    if (error.name === "AbortError") return;
    opened = refusal(error);
  } finally {
    clearTimeout(slow);
  }
  if (turn !== wanted) return life.end();
  present(opened, life, identity, page);
}

function present(opened, life, identity, page) {
  const first = now === null;
  now?.life.end();
  now = { identity, opened, life };
  progress.hidden = true;
  replace(main, opened.nodes);
  main.dataset.page = page || "runs";
  main.setAttribute("aria-busy", "false");
  document.title = opened.title === "air view" ? opened.title : `${opened.title} · air view`;
  markNav(page);
  if (!first) {
    scrollTo(0, 0);
    main.focus({ preventScroll: true });
    said.textContent = opened.title;
  }
  opened.shown?.();
}

function markNav(page) {
  for (const link of document.querySelectorAll("#nav a")) {
    const ofTrajectories = ["list", "trajectory", "tokens", "group"].includes(page);
    if (ofTrajectories === (link.hash === "#/list")) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}

function refusal(error) {
  const known = error.fix !== undefined;
  if (!known) console.error(error);
  const fix = known ? error.fix : "This is a fault of the page: reload it, and report it with the browser's console.";
  return {
    title: "Not shown",
    nodes: [
      h("h1", {}, "This cannot be shown"),
      h(
        "div",
        { class: "notice bad", role: "alert" },
        h("p", {}, error.message),
        fix && h("p", {}, h("strong", {}, "What to do: "), fix),
        h(
          "p",
          {},
          h("button", { type: "button", onclick: again }, "Try again"),
          " ",
          h("a", { href: "#/" }, "All runs"),
        ),
      ),
    ],
  };
}

function nowhere(page) {
  return refusal(
    Object.assign(new Error(`There is no page “${page}”.`), { fix: "Go to the runs and click from there." }),
  );
}

function again() {
  if (now) now.identity = null;
  go();
}

/** The viewed directory, and while it is being read for the first time, how far that is. */
async function showWhere() {
  const about = await get("/api/about").catch(() => null);
  if (!about) return;
  const { done, total } = about.indexing ?? {};
  const reading = done < total;
  const where = document.getElementById("where");
  where.textContent = reading ? `${about.dir} – reading: ${number(done)} of ${number(total)} episodes` : about.dir;
  where.title = [`air ${about.version}, read only: nothing here changes a run`, about.note].filter(Boolean).join("\n");
  stopWatching?.();
  stopWatching = reading ? onChange(showWhere) : null; // each batch that was read is an event
}

startTheme(document.getElementById("theme"));
startKeys();
useKeys([
  { keys: ["/"], says: "to the search or filter box", act: () => main.querySelector("input[type=search]")?.focus() },
  { keys: ["?"], says: "this help", act: openHelp },
]);
document.getElementById("help").addEventListener("click", openHelp);
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", go);
go().then(() => {
  startLive(document.getElementById("live"));
  showWhere();
});
