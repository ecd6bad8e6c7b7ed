// Perfetto's UI: its addresses for an instant, and its frame, which stays loaded while the reader looks at other views.

import { fill, h } from "../core/dom.js";
import { read, subscribe, write } from "../core/state.js";
import * as format from "../text/format.js";

const SPAN_NS = 100_000; // shown at an instant from an address
const MARGIN_NS = 1_000; // Perfetto ignores a range that leaves the trace

/** The trace file with an instant of a rank, and the instant in the file: {name, path, file_ns}. */
export function fileAt({ rank, shift }, time) {
  const recorded = time - shift;
  const clocks = rank.clocks ?? [];
  let place = 0;
  clocks.forEach((clock, i) => (clock.start_ns <= recorded ? (place = i) : null));
  const path = rank.sources[place] ?? rank.sources[0] ?? "";
  const clock = clocks[place];
  return { path, name: path.split("/").pop(), file_ns: clock ? clock.file_ns + recorded - clock.start_ns : null, clock };
}

/** The files of a run that a server provides: [{index, name}]. */
export function tracesOf(run) {
  return Array.from({ length: run.files ?? 0 }, (_, index) => ({ index, name: run.traces?.[index] ?? `file ${index + 1}` }));
}

/** Perfetto's address for a trace file, at a range of time if one is given. `embedded` leaves out its menus. */
export function perfettoAddress(source, run, index, { range = null, embedded = false } = {}) {
  const query = { url: source.trace(run.name, index), ...(embedded ? { mode: "embedded" } : { hideSidebar: "true" }) };
  if (range) {
    query.visStart = whole(Math.max(range.start, range.first + MARGIN_NS));
    query.visEnd = whole(Math.max(range.end, range.first + 2 * MARGIN_NS));
  }
  return `perfetto/index.html#!/?${Object.entries(query)
    .map(([key, value]) => `${key}=${encodeURIComponent(value)}`)
    .join("&")}`;
}

/** The range of a file around a span of time of a rank, for `perfettoAddress`; null if the report has no clocks. */
export function rangeIn(item, { start, end }) {
  const { file_ns, clock } = fileAt(item, start);
  if (file_ns === null) return null;
  const around = (end - start) / 2;
  return { start: file_ns - around, end: file_ns + (end - start) + around, first: clock.file_ns };
}

const dock = h("section", { class: "dock", "aria-label": "Perfetto", hidden: true });
let shown = null; // {run, index, frame} of the loaded file

subscribe((state) => {
  if (state.view !== "timeline" || (shown && state.run && state.run !== shown.run)) dock.hidden = true;
});

/** Show the frame of this run below the view again, if the reader has opened it. */
export function restoreDock({ source, run, rank }, items) {
  place();
  const asked = read()["time.perfetto"];
  if (shown?.run === run.name) dock.hidden = false;
  else if (asked !== undefined && source.live && Number(asked) < (run.files ?? 0)) {
    const item = items?.find((each) => each.rank === rank);
    const at = Number(read()["time.at"] ?? NaN) + (item?.shift ?? 0);
    openDock({ source, run }, Number(asked), Number.isFinite(at) ? { item, span: { start: at, end: at + SPAN_NS } } : {});
  } else dock.hidden = true;
}

/** Open Perfetto in its frame with a trace file, at a span of time of a rank if one is given. */
export function openDock({ source, run }, index, { item = null, span = null } = {}) {
  const range = item && span ? rangeIn(item, span) : null;
  if (range && shown?.run === run.name && shown.index === index) {
    scrollTo(range);
  } else {
    shown = { run: run.name, index, frame: h("iframe", { class: "frame" }) };
    shown.frame.setAttribute("src", perfettoAddress(source, run, index, { range, embedded: true }));
    fill(dock, h("div", { class: "dock-head" }), shown.frame);
  }
  const name = tracesOf(run)[index]?.name ?? "";
  shown.frame.title = `Timeline of ${name} in Perfetto`;
  const instant = range ? ` at ${format.duration(span.start - item.shift)}` : "";
  const tab = { class: "button", target: "_blank", rel: "noopener" };
  fill(
    dock.firstChild,
    h("h2", {}, `Perfetto: ${name}${instant}`),
    h("a", { ...tab, href: perfettoAddress(source, run, index, { range }) }, "In its own tab"),
    h("button", { type: "button", on: { click: close } }, "Close"),
  );
  place();
  dock.hidden = false;
  write({ "time.perfetto": index }, { quiet: true });
}

/** Show a span of time of a rank in the frame, if the reader has opened it with that rank's file. */
export function followDock({ source, run }, item, span) {
  if (dock.hidden || shown?.run !== run.name) return;
  if (tracesOf(run)[shown.index]?.name === fileAt(item, span.start).name) openDock({ source, run }, shown.index, { item, span });
}

/** Bring the frame into sight. */
export function seeDock() {
  dock.scrollIntoView({ block: "nearest" });
}

// Perfetto moves to a range of time on a message from a page of its own origin.
function scrollTo({ start, end }) {
  const range = { timeStart: start / 1e9, timeEnd: end / 1e9, viewPercentage: 1 };
  shown.frame.contentWindow?.postMessage({ perfetto: range }, location.origin);
}

function place() {
  const main = document.getElementById("main");
  if (main && dock.parentNode !== main.parentNode) main.after(dock);
}

function close() {
  fill(dock);
  dock.hidden = true;
  shown = null;
  write({ "time.perfetto": null }, { quiet: true });
}

function whole(time) {
  return String(BigInt(Math.round(time)));
}
