// Light and dark theme: the system's choice unless the state names one.

const dark = matchMedia("(prefers-color-scheme: dark)");

// TensorBoard has its own switch, and its page contains this one in a frame.
const outer = framing();

/** Show a theme: "light", "dark", or the system's. */
export function applyTheme(name) {
  const chosen = ["light", "dark"].includes(name) ? name : isDark() ? "dark" : "light";
  document.documentElement.dataset.theme = chosen;
}

/** The current theme. */
export function theme() {
  return document.documentElement.dataset.theme;
}

/** Call a function whenever the system's choice changes. */
export function onSystemTheme(listener) {
  dark.addEventListener("change", listener);
  if (outer) new MutationObserver(listener).observe(outer, { attributes: true, attributeFilter: ["class"] });
}

function isDark() {
  return outer ? outer.classList.contains("dark-mode") : dark.matches;
}

function framing() {
  try {
    return window.parent === window ? null : window.parent.document.querySelector("body:has(tb-webapp)");
  } catch {
    return null; // in a frame of a page with another origin
  }
}

/** The value of a color of the style sheet, by its name without "--". */
export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** A color of the style sheet as a value for a style. A name that cannot be one gives the color `unknown`. */
export function paint(name) {
  return `var(--${/^[a-z][\w-]*$/i.test(name) ? name : "unknown"})`;
}
