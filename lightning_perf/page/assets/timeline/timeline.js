// The timeline: every rank's steps on one axis of time, with zoom, pan, a chosen bin, and all of it in the address.

import { copyButton } from "../components/copy.js";
import { legend, notice } from "../components/parts.js";
import { fill, h } from "../core/dom.js";
import { largest } from "../core/numbers.js";
import { address, read, write } from "../core/state.js";
import * as format from "../text/format.js";
import { label } from "../text/labels.js";
import { clampRange, makeAxis, ticks, zoomed } from "./axis.js";
import { makeBrush } from "./brush.js";
import { binDetails, describeBin } from "./details.js";
import { drawMarks, drawParts, drawSeries, drawSteps, palette } from "./drawing.js";
import { binAt, binsWith, spanOf, stepAt } from "./lanes.js";
import { followDock } from "./perfetto.js";

const MOST_RANKS = 16; // lanes of more ranks do not fit a screen
const ZOOM = 1.6; // per key or press
const PAN = 0.2; // of the range, per key
const TICK_PX = 110;
const LABEL_PX = 50;
const CLICK_PX = 4; // a pointer that moves less has clicked
const SAVE_MS = 250;

const HELP =
  "Arrow keys pan, plus and minus zoom, Home shows everything. Page Up and Page Down go to the previous and next step. " +
  "Shift with an arrow key chooses the previous or next bin, arrow up and down the rank, Enter opens Perfetto there.";

const HINT = "Click to choose an instant. Then scroll to zoom, drag to pan, press Home to see everything.";

let refocus = false; // the view is drawn again after a change of rank

/** The timeline of a report; null if the report has none. `items` are its ranks from `readRanks`. */
export function timelineElement(context, found) {
  const { rank } = context;
  const { ranks } = found;
  const chosen = ranks.find((item) => item.rank === rank) ?? ranks[0];
  const several = ranks.length > 1;
  const marked = chosen.rank.breakdown.marked;
  const axis = makeAxis(ranks);
  const items = ranks.length <= MOST_RANKS ? ranks : nearby(ranks, chosen);
  const state = read();
  let range = savedRange(state, axis, chosen.shift);
  let at = savedInstant(state, axis, chosen.shift);
  const mark = savedMark(state, chosen);
  if (mark && at === null && mark.bins.length) at = spanOf(chosen, strongest(mark.bins)).start;
  let saving = null;
  let frame = null;
  let drag = null;
  const touches = new Map();

  const drawings = []; // functions that draw a lane with the current range
  const brush = makeBrush(axis.least, (next) => zoomTo(next));
  const hover = h("p", { class: "tl-hover faint", "aria-hidden": "true" }, HINT);
  const spoken = h("p", { class: "unseen", role: "status", "aria-live": "polite" });
  const details = h("div", { class: "tl-details" });
  const cursor = h("div", { class: "tl-cursor", "aria-hidden": "true", hidden: true });
  const axisRow = h("div", { class: "tl-axis", "aria-hidden": "true" });
  const shownRange = h("span", { class: "faint tl-range" });
  const rows = [];

  const lane = (name, height, draw, { row = chosen.row, note = null } = {}) => {
    const canvas = h("canvas", { class: "tl-lane", style: { height: `${height}px` }, "data-row": row });
    rows.push(h("div", { class: "tl-name" }, name, note ? h("small", {}, note) : null), canvas);
    drawings.push((ink) => draw(canvas, ink));
    return canvas;
  };
  const parts = (item, key, style) => (canvas, ink) =>
    drawParts(canvas, { item, lane: item.lanes[key], axis, range, ink, style });

  rows.push(h("div", { class: "tl-name" }, several ? "All ranks" : marked ? "All steps" : "All"), brush.element);
  drawings.push((ink) => {
    const lane_ = { item: chosen, lane: chosen.lanes.categories, axis, range: { from: 0, to: 1 }, ink, style: "largest" };
    drawParts(brush.canvas, lane_);
  });
  rows.push(h("div", { class: "tl-name" }, "Time"), axisRow);
  lane("Steps", 18, (canvas, ink) => drawSteps(canvas, { item: chosen, axis, range, ink, marked }));
  for (const item of items) {
    const own = item === chosen;
    const at_row = { row: item.row };
    if (several) rows.push(rankHead(item, own));
    lane("Phase", own ? 14 : 8, parts(item, "phases", "largest"), at_row);
    lane("Largest category", own ? 40 : 26, parts(item, "categories", "largest"), at_row);
    if (!own) continue;
    lane("All categories", 40, parts(item, "categories", "stacked"), at_row);
    if (item.lanes.idle) lane("Idle, by cause", 16, parts(item, "idle", "partial"), at_row);
    if (mark) {
      lane(mark.name, 14, (canvas, ink) => drawMarks(canvas, { item, bins: mark.bins, axis, range, ink }), {
        note: format.countOf(mark.bins.length, "bin"),
      });
    }
    series("Queue depth", item.queue, "kernel_launch", format.count);
    series("Memory", item.memory, "activations", format.bytes);
  }

  function series(name, values, color, text) {
    if (!values?.time.length) return;
    const most = largest(values.value, 1);
    lane(name, 36, (canvas, ink) => drawSeries(canvas, { series: values, most, axis, range, fill: ink(color) }), {
      note: `up to ${text(most)}`,
    });
  }

  function rankHead(item, own) {
    const name = rankName(item);
    return h(
      "div",
      { class: "tl-rank" },
      own
        ? h("b", {}, name)
        : h("button", { type: "button", class: "quiet", on: { click: () => chooseRank(item) } }, name),
      h("span", { class: "faint" }, `${format.duration(item.rank.breakdown.wall.mean_ns)} per step`),
    );
  }

  const plot = h(
    "div",
    {
      class: "tl-plot",
      role: "application",
      tabindex: "0",
      "aria-roledescription": "timeline",
      "aria-label": `Timeline of ${several ? format.countOf(ranks.length, "rank") : format.countOf(chosen.steps.length, "step")}. ${HELP}`,
    },
    rows,
    cursor,
  );

  const tool = (name, text, act) =>
    h("button", { type: "button", class: "tl-tool", "aria-label": name, title: name, on: { click: act } }, text);
  const middle = () => (range.from + range.to) / 2;
  const element = h(
    "div",
    { class: "tl" },
    h(
      "div",
      { class: "row tl-tools" },
      tool("Zoom in", "+", () => zoom(1 / ZOOM, middle())),
      tool("Zoom out", "−", () => zoom(ZOOM, middle())),
      tool("Show everything", "Reset", () => zoomTo({ from: 0, to: 1 })),
      chosen.steps.length > 1 && tool("Previous step", "‹ Step", () => goToStep(-1)),
      chosen.steps.length > 1 && tool("Next step", "Step ›", () => goToStep(1)),
      shownRange,
      copyButton(address, { name: "Copy a link to this view", shown: "Copy link" }),
    ),
    mark && !mark.bins.length
      ? notice(`No bin lists ${mark.name} among its three longest. Its table has the figures.`)
      : null,
    hover,
    plot,
    legends(chosen),
    axis.cuts.length
      ? notice(`Shortened: ${format.countOf(axis.cuts.length, "long pause")} between recorded steps.`)
      : null,
    found.aligned ? notice("The clocks of the ranks differ. Their first common step is drawn at the same time.") : null,
    items.length < ranks.length
      ? notice(`${items.length} of ${ranks.length} ranks are shown. Choose another rank above to see it.`)
      : null,
    spoken,
    details,
  );

  plot.addEventListener("wheel", onWheel, { passive: false });
  plot.addEventListener("pointerdown", onDown);
  plot.addEventListener("pointermove", onMove);
  plot.addEventListener("pointerup", onUp);
  plot.addEventListener("pointercancel", () => (touches.clear(), (drag = null)));
  plot.addEventListener("pointerleave", () => fill(hover, HINT));
  plot.addEventListener("dblclick", (event) => onLane(event) && openPerfetto());
  plot.addEventListener("keydown", onKey);
  new ResizeObserver(draw).observe(plot);
  const themes = new MutationObserver(() => (element.isConnected ? draw() : themes.disconnect()));
  themes.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  showBin();
  if (refocus) requestAnimationFrame(() => plot.focus({ preventScroll: true }));
  refocus = false;
  return element;

  function draw() {
    frame = null;
    const ink = palette();
    for (const each of drawings) each(ink);
    brush.show(range);
    const [start, end] = [axis.time(range.from), axis.time(range.to)];
    const width = axisRow.clientWidth || 600;
    let free = 0; // where the next label may begin: a shortened pause has its instants close together
    fill(
      axisRow,
      ticks(start, end, Math.max(2, Math.floor(width / TICK_PX))).map(({ time, text }) => {
        const place = (axis.place(time) - range.from) / (range.to - range.from);
        const fits = place * width >= free && place * width < width - LABEL_PX;
        if (fits) free = place * width + LABEL_PX;
        return h("span", { style: { left: `${100 * place}%` } }, fits ? text : "");
      }),
    );
    fill(shownRange, `${format.duration(end - start)} from ${start ? format.duration(start) : "the start"}`);
    showCursor();
  }

  function showCursor() {
    const bin = at === null ? -1 : binAt(chosen, at);
    const canvas = brush.canvas;
    if (bin < 0 || !canvas.clientWidth) {
      cursor.hidden = true;
      return;
    }
    const { start, end } = spanOf(chosen, bin);
    const scale = (time) => (canvas.clientWidth * (axis.place(time) - range.from)) / (range.to - range.from);
    const [left, right] = [scale(start), scale(end)];
    cursor.hidden = right < 0 || left > canvas.clientWidth;
    const lead = canvas.getBoundingClientRect().left - plot.getBoundingClientRect().left;
    cursor.style.setProperty("left", `${lead + Math.max(0, left)}px`);
    cursor.style.setProperty("width", `${Math.max(2, Math.min(right, canvas.clientWidth) - Math.max(0, left))}px`);
    cursor.style.setProperty("top", `${brush.element.offsetTop + brush.element.offsetHeight}px`);
  }

  function zoomTo(next) {
    range = next;
    frame ??= requestAnimationFrame(draw); // a pointer moves more often than the screen shows
    saveSoon();
  }

  function zoom(factor, about) {
    zoomTo(zoomed(range, factor, about, axis.least));
  }

  function pan(part) {
    const by = part * (range.to - range.from);
    zoomTo(clampRange({ from: range.from + by, to: range.to + by }, axis.least));
  }

  // Browsers refuse many changes of the address in a short time, such as those of a drag.
  function saveSoon() {
    clearTimeout(saving);
    saving = setTimeout(() => element.isConnected && save(), SAVE_MS);
  }

  function save() {
    clearTimeout(saving);
    const instant = at === null ? null : Math.round(at - chosen.shift);
    write({ ...addressed(range, chosen.shift), "time.at": instant }, { quiet: true });
  }

  function choose(time, { follow = false } = {}) {
    at = time;
    const place = axis.place(time);
    if (follow && (place < range.from || place > range.to)) {
      const half = (range.to - range.from) / 2;
      range = clampRange({ from: place - half, to: place + half }, axis.least);
      draw();
    }
    showBin();
    showCursor();
    save();
    const bin = binAt(chosen, at);
    if (bin >= 0) followDock(context, chosen, spanOf(chosen, bin));
  }

  function showBin() {
    const bin = at === null ? -1 : binAt(chosen, at);
    if (bin < 0) {
      fill(details, h("p", { class: "faint" }, "Click the timeline, or press Shift and an arrow key, to see a bin's parts."));
      return;
    }
    fill(details, binDetails(context, chosen, bin, several ? rankName(chosen) : ""));
    fill(spoken, describeBin(chosen, bin, marked));
  }

  function chooseRank(item, time = at) {
    clearTimeout(saving);
    refocus = true;
    const instant = time === null ? null : Math.round(time - item.shift);
    write({ rank: item.row, ...addressed(range, item.shift), "time.at": instant, "time.find": null }, { push: true });
  }

  // Addresses hold times from the start of the rank's recording, as reports do.
  function addressed({ from, to }, shift) {
    const whole = to - from > 0.9999;
    return {
      "time.from": whole ? null : Math.round(axis.time(from) - shift),
      "time.to": whole ? null : Math.round(axis.time(to) - shift),
    };
  }

  function moveBin(by) {
    const bin = at === null ? -1 : binAt(chosen, at);
    const last = chosen.steps.length * chosen.bins - 1;
    const next = bin < 0 ? Math.max(0, binAt(chosen, axis.time(middle()))) : Math.max(0, Math.min(last, bin + by));
    const { start, end } = spanOf(chosen, next);
    choose((start + end) / 2, { follow: true });
  }

  function goToStep(by) {
    const whole = range.to - range.from > 0.9999;
    const now = stepAt(chosen, axis.time(middle()));
    const next = whole ? (by > 0 ? 0 : chosen.steps.length - 1) : Math.max(0, Math.min(chosen.steps.length - 1, now + by));
    const { start, end } = chosen.steps[next];
    const [from, to] = [axis.place(start), axis.place(end)];
    zoomTo(clampRange({ from: from - 0.02 * (to - from), to: to + 0.02 * (to - from) }, axis.least));
  }

  function openPerfetto() {
    const bin = at === null ? -1 : binAt(chosen, at);
    if (bin < 0) return;
    const button = details.querySelector(".tl-perfetto");
    if (button) button.click();
    else details.querySelector(".copy")?.focus();
  }

  function placeOf(event) {
    const box = brush.canvas.getBoundingClientRect();
    return range.from + ((event.clientX - box.left) / box.width) * (range.to - range.from);
  }

  function onLane(event) {
    return event.target instanceof HTMLCanvasElement && event.target.dataset.row !== undefined;
  }

  // A wheel scrolls the page until the reader has clicked the timeline.
  function onWheel(event) {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!event.ctrlKey && !event.metaKey && !sideways && !plot.contains(document.activeElement)) {
      fill(hover, "Click the timeline first, or hold Ctrl, to zoom with the wheel.");
      return;
    }
    event.preventDefault();
    if (sideways || event.shiftKey) pan((event.deltaX || event.deltaY) / brush.canvas.clientWidth);
    else zoom(1.0025 ** Math.max(-400, Math.min(400, event.deltaY)), placeOf(event));
  }

  function onDown(event) {
    if (event.button || !onLane(event)) return;
    touches.set(event.pointerId, event.clientX);
    drag = { x: event.clientX, range, moved: false, spread: spread() };
    plot.setPointerCapture(event.pointerId);
  }

  function onMove(event) {
    if (!drag || !touches.has(event.pointerId)) {
      if (onLane(event)) showHover(event);
      return;
    }
    touches.set(event.pointerId, event.clientX);
    const length = drag.range.to - drag.range.from;
    if (touches.size > 1) {
      const factor = drag.spread / Math.max(spread(), 1);
      drag.moved = true;
      return zoomTo(zoomed(drag.range, factor, (drag.range.from + drag.range.to) / 2, axis.least));
    }
    const by = event.clientX - drag.x;
    drag.moved ||= Math.abs(by) > CLICK_PX;
    if (!drag.moved) return;
    plot.classList.add("dragged");
    const shift = (-by / brush.canvas.clientWidth) * length;
    zoomTo(clampRange({ from: drag.range.from + shift, to: drag.range.to + shift }, axis.least));
  }

  function onUp(event) {
    touches.delete(event.pointerId);
    plot.classList.remove("dragged");
    const clicked = drag && !drag.moved;
    if (touches.size === 0) drag = null;
    if (!clicked) return;
    plot.focus({ preventScroll: true });
    const time = axis.time(placeOf(event));
    const target = document.elementFromPoint(event.clientX, event.clientY);
    const item = items.find(({ row }) => String(row) === target?.dataset?.row) ?? chosen;
    if (item !== chosen && binAt(item, time) >= 0) chooseRank(item, time);
    else if (binAt(chosen, time) >= 0) choose(time);
  }

  function spread() {
    const places = [...touches.values()];
    return places.length > 1 ? Math.max(20, Math.abs(places[0] - places[1])) : 1;
  }

  function showHover(event) {
    const time = axis.time(placeOf(event));
    const item = items.find(({ row }) => String(row) === event.target.dataset.row) ?? chosen;
    const bin = binAt(item, time);
    fill(hover, bin < 0 ? "Outside of the steps" : `${several ? `${rankName(item)}: ` : ""}${describeBin(item, bin, marked)}`);
  }

  function onKey(event) {
    if (event.target !== plot || event.altKey || event.ctrlKey || event.metaKey) return;
    const place = at !== null && inRange(axis.place(at)) ? axis.place(at) : middle();
    const act = {
      "+": () => zoom(1 / ZOOM, place),
      "=": () => zoom(1 / ZOOM, place),
      "-": () => zoom(ZOOM, place),
      _: () => zoom(ZOOM, place),
      Home: () => zoomTo({ from: 0, to: 1 }),
      ArrowLeft: () => (event.shiftKey ? moveBin(-1) : pan(-PAN)),
      ArrowRight: () => (event.shiftKey ? moveBin(1) : pan(PAN)),
      ArrowUp: () => nextRank(-1),
      ArrowDown: () => nextRank(1),
      PageUp: () => goToStep(-1),
      PageDown: () => goToStep(1),
      Enter: openPerfetto,
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  function inRange(place) {
    return place >= range.from && place <= range.to;
  }

  function nextRank(by) {
    const next = ranks[ranks.indexOf(chosen) + by];
    if (next) chooseRank(next);
  }
}

// The colors of the lanes, with the names that occur.
function legends({ lanes }) {
  const rows = [
    ["Category", lanes.categories, "categories"],
    ["Phase", lanes.phases, "phases"],
    ["Idle while", lanes.idle, "gaps"],
  ];
  const items = (lane, table) => lane.names.map((name) => ({ label: label(table, name), color: name }));
  return h(
    "dl",
    { class: "tl-legends" },
    rows.map(([title, lane, table]) => lane && [h("dt", {}, title), h("dd", {}, legend(items(lane, table)))]),
  );
}

/** The name of a rank in the timeline. */
export function rankName({ rank, row }) {
  return rank.rank === null ? (rank.sources[0]?.split("/").pop() ?? `recording ${row + 1}`) : `Rank ${rank.rank}`;
}

function nearby(ranks, chosen) {
  const from = Math.max(0, Math.min(ranks.length - MOST_RANKS, ranks.indexOf(chosen) - MOST_RANKS / 2));
  return ranks.slice(from, from + MOST_RANKS);
}

function savedRange(state, axis, shift) {
  const [from, to] = [Number(state["time.from"] ?? NaN) + shift, Number(state["time.to"] ?? NaN) + shift];
  if (!Number.isFinite(from) || !Number.isFinite(to) || to <= from) return { from: 0, to: 1 };
  return clampRange({ from: axis.place(from), to: axis.place(to) }, axis.least);
}

function savedInstant(state, axis, shift) {
  const time = Number(state["time.at"] ?? NaN) + shift;
  return Number.isFinite(time) && time >= axis.first && time <= axis.last ? time : null;
}

// The kernel, operator or module to mark, from an address such as "kernels:gemm".
function savedMark(state, item) {
  const [, kind, name] = /^(kernels|operators|modules):(.+)$/s.exec(state["time.find"] ?? "") ?? [];
  return kind ? { name, bins: binsWith(item.lanes[kind], name) } : null;
}

function strongest(bins) {
  return bins.reduce((best, each) => (each.share > best.share ? each : best)).bin;
}
