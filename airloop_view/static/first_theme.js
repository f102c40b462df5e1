// Not a module: it runs before the first paint, so that a page chosen dark never flashes white.
try {
  const chosen = localStorage.getItem("air.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage may be forbidden; the system's colours are used then.
}
