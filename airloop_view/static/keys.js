// Single keys. A page says which it knows while it is shown; `?` lists them. They can be switched off, for those whose
// speech input or screen reader types letters.

const held = []; // of pages and dialogs, the last first
let on = read();

export function startKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.defaultPrevented) return;
    if (event.key !== "Escape" && (isTyping(event.target) || document.querySelector("dialog[open]"))) return;
    if (!on && event.key.length === 1) return;
    if (document.querySelector("main[aria-busy=true]")) return; // the page being left must not move what comes next
    for (const known of held) {
      const key = known.find((one) => one.keys.includes(event.key));
      if (!key) continue;
      if (key.act(event) !== false) event.preventDefault();
      return;
    }
  });
}

/** `known`: [{keys: ["j", "ArrowRight"], says: "next trajectory", act}]. Returns how to forget them. */
export function useKeys(known) {
  held.unshift(known);
  return () => held.splice(held.indexOf(known), 1);
}

export function knownKeys() {
  return held.flat();
}

export function singleKeys() {
  return on;
}

export function setSingleKeys(value) {
  on = value;
  try {
    localStorage.setItem("air.keys", value ? "on" : "off");
  } catch {
    // Without storage the choice lasts as long as the page.
  }
}

function read() {
  try {
    return localStorage.getItem("air.keys") !== "off";
  } catch {
    return true;
  }
}

function isTyping(element) {
  if (element.isContentEditable || ["TEXTAREA", "SELECT"].includes(element.tagName)) return true;
  return element.tagName === "INPUT" && !["checkbox", "button"].includes(element.type);
}
