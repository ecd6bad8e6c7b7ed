// What is shown, kept in the address after "#": view, run, rank, theme, and each table's sort, search and page. A link
// therefore shows its reader what its sender saw, and "back" goes back.

const listeners = new Set();

/** The state as a plain object of strings. */
export function read() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

/**
 * Change some keys; null removes one.
 *
 * `push`: leave an entry in the history. `quiet`: tell no listener, because the caller has shown the change itself.
 */
export function write(changes, { push = false, quiet = false } = {}) {
  const next = new URLSearchParams(location.hash.slice(1));
  for (const [key, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") next.delete(key);
    else next.set(key, String(value));
  }
  const hash = `#${next}`;
  if (hash !== location.hash && !(hash === "#" && location.hash === "")) {
    history[push ? "pushState" : "replaceState"](null, "", hash);
  }
  if (!quiet) tell();
}

/** The address of this page with some keys changed. Keys of tables belong to the view and run they were set in. */
export function link(changes) {
  const kept = Object.entries(read()).filter(([key]) => !key.includes("."));
  const next = new URLSearchParams(kept);
  for (const [key, value] of Object.entries(changes)) {
    if (value === null || value === "") next.delete(key);
    else next.set(key, String(value));
  }
  return `#${next}`;
}

/** Call a function whenever the state has changed. */
export function subscribe(listener) {
  listeners.add(listener);
}

function tell() {
  const state = read();
  for (const listener of listeners) listener(state);
}

window.addEventListener("popstate", tell);
