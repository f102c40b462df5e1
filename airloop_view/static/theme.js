// Light and dark: as the system has them, unless one is chosen with the switch.

const CHOICES = ["auto", "light", "dark"];
const WORDS = { auto: "as the system has them", light: "light", dark: "dark" };
const listeners = new Set();
const system = matchMedia("(prefers-color-scheme: dark)");

export function startTheme(button) {
  let chosen = document.documentElement.dataset.theme ?? "auto";
  const show = () => {
    button.textContent = chosen[0].toUpperCase() + chosen.slice(1);
    button.setAttribute("aria-label", `Colours: ${WORDS[chosen]}`);
  };
  button.addEventListener("click", () => {
    chosen = CHOICES[(CHOICES.indexOf(chosen) + 1) % CHOICES.length];
    if (chosen === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = chosen;
    remember(chosen);
    show();
    for (const listener of listeners) listener();
  });
  system.addEventListener("change", () => listeners.forEach((listener) => listener()));
  show();
}

/** Called when the colours change; returns how to stop. Pictures that do not follow CSS need it. */
export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** The value of a colour of style/base.css as it is now. */
export function colour(name) {
  const probe = document.createElement("i");
  probe.style.setProperty("color", `var(--${name})`);
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

function remember(chosen) {
  try {
    localStorage.setItem("air.theme", chosen);
  } catch {
    // Without storage the choice lasts as long as the page.
  }
}
