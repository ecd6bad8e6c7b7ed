// The state of the page, kept in the address after "#": view, run, rank, theme, the instant of the timeline, and each
// table's sort, search and page. A link therefore opens the same view, and the browser's "back" works.
//
// TensorBoard shows the page in a frame with an address of its own, which a reload forgets. There, TensorBoard's address
// holds the state too, in the parameter that it reserves for this plugin.

const RETRY_MS = 1000;
const PLUGIN = "#lightning_perf";
const PARAMETER = "p.lightning_perf.state=";

const listeners = new Set();
const outer = framing();
let shown = new URLSearchParams(location.hash.slice(1) || remembered()); // the address follows it
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

/** The address that opens this view, for a link. In TensorBoard, that is TensorBoard's address. */
export function address() {
  follow("replaceState");
  return (outer ?? window).location.href;
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
  remember();
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
  remember();
  tell();
});

// Somebody has pasted a link into TensorBoard's address.
outer?.addEventListener("hashchange", () => {
  const state = remembered();
  if (!state || state === String(shown)) return;
  shown = new URLSearchParams(state);
  follow("replaceState");
  tell();
});

if (!location.hash && shown.size) follow("replaceState");

// TensorBoard's window if it contains this page, or null.
function framing() {
  try {
    if (window.parent === window) return null;
    return window.parent.document.querySelector("body:has(tb-webapp)") ? window.parent : null;
  } catch {
    return null; // in a frame of a page with another origin
  }
}

// TensorBoard's address is "#plugin&name=value&…".
function remembered() {
  const part = (outer?.location.hash ?? "").split("&").find((item) => item.startsWith(PARAMETER));
  try {
    return part ? decodeURIComponent(part.slice(PARAMETER.length)) : "";
  } catch {
    return ""; // somebody has edited the address
  }
}

function remember() {
  if (!outer || !outer.location.hash.startsWith(PLUGIN)) return;
  const others = outer.location.hash.split("&").filter((item) => !item.startsWith(PARAMETER));
  const next = [...others, `${PARAMETER}${encodeURIComponent(String(shown))}`].join("&");
  if (next === outer.location.hash) return;
  try {
    outer.history.replaceState(outer.history.state, "", next);
  } catch (error) {
    if (error.name !== "SecurityError") throw error; // too many changes in a short time: the next one is kept
  }
}
