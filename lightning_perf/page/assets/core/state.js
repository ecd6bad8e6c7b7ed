// The state of the page, kept in the address after "#": view, run, rank, theme, and each table's sort, search and page.
// A link therefore opens the same view, and the browser's "back" works.

const RETRY_MS = 1000;

const listeners = new Set();
let shown = new URLSearchParams(location.hash.slice(1)); // the address follows it
let retry = null;

/** The state as a plain object of strings. */
export function read() {
  return Object.fromEntries(shown);
}

/**
 * Change some keys; null removes one.
 *
 * `push`: add an entry to the history. `quiet`: call no listener, because the caller has shown the change itself.
 */
export function write(changes, { push = false, quiet = false } = {}) {
  shown = changed(shown, changes);
  follow(push ? "pushState" : "replaceState");
  if (!quiet) tell();
}

/** The address of this page with some keys changed. Keys of tables belong to the view and run in which they were set. */
export function link(changes) {
  const kept = Object.entries(read()).filter(([key]) => !key.includes("."));
  return `#${changed(kept, changes)}`;
}

/** Call a function whenever the state has changed. */
export function subscribe(listener) {
  listeners.add(listener);
}

function changed(state, changes) {
  const next = new URLSearchParams(state);
  for (const [key, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") next.delete(key);
    else next.set(key, String(value));
  }
  return next;
}

// Browsers refuse many changes in a short time, such as those of a slider: Safari with an error, Chromium silently.
function follow(method) {
  clearTimeout(retry);
  const same = () => String(new URLSearchParams(location.hash.slice(1))) === String(shown);
  if (same()) return;
  try {
    history[method](null, "", `#${shown}`);
  } catch (error) {
    if (error.name !== "SecurityError") throw error;
  }
  if (!same()) retry = setTimeout(follow, RETRY_MS, method);
}

function tell() {
  const state = read();
  for (const listener of listeners) listener(state);
}

window.addEventListener("popstate", () => {
  clearTimeout(retry);
  shown = new URLSearchParams(location.hash.slice(1));
  tell();
});
