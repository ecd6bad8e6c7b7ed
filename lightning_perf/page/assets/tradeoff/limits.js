// Limits for latency and loss of accuracy, set on the page and kept in the address.

import { h } from "../core/dom.js";
import { largest, smallest } from "../core/numbers.js";
import { read, write } from "../core/state.js";
import * as format from "../text/format.js";

const ANY = "any"; // value in the address if the document has a limit and the reader removed it
const STEPS = 200;

/** The cell (batch size and number of threads) in the address, or else the first. */
export function chosenCell({ cells }) {
  return cells[Number(read().cell)] ?? cells[0] ?? null;
}

/** The limits in the address, or else those of the document's recommendation: {latency_ms, drop_points}, null for no limit. */
export function chosenLimits({ recommendation }) {
  const state = read();
  const limit = (text, otherwise) => {
    if (text === undefined) return otherwise ?? null;
    const number = Number(text);
    return text !== ANY && Number.isFinite(number) ? number : null;
  };
  return {
    latency_ms: limit(state.max_ms, recommendation?.max_latency_ms),
    drop_points: limit(state.max_drop, recommendation?.max_accuracy_drop_points),
  };
}

/** The p90 latency, or the median if there were too few calls for p90. */
export function slow(latency) {
  return latency.p90_ms ?? latency.p50_ms;
}

/** The figures of a variant in a cell, or null. */
export function latencyOf(row, cell) {
  return row.latencies.find((item) => item.threads === cell.threads && item.batch === cell.batch) ?? null;
}

/** Whether a variant is within the limits in a cell. */
export function keeps(row, cell, { latency_ms: most, drop_points: drop }) {
  const latency = latencyOf(row, cell);
  if (!latency || row.reason !== null) return false;
  return (most === null || slow(latency) <= most) && (drop === null || (row.accuracy?.drop_points ?? Infinity) <= drop);
}

/** A cell as text. */
export function cellText({ batch, threads }) {
  return `batch ${batch}, ${format.countOf(threads, "thread")}`;
}

/** The choice of a cell; null if there is only one. Leave out `changed` if the whole view is drawn again. */
export function cellChoice({ cells }) {
  if (cells.length < 2) return null;
  const chosen = chosenCell({ cells });
  const select = h(
    "select",
    { id: "cell", on: { change: (event) => write({ cell: event.target.value }) } },
    cells.map((cell, i) => h("option", { value: i, selected: cell === chosen }, cellText(cell))),
  );
  return h("div", { class: "control" }, h("label", { for: "cell" }, "Calls with"), select);
}

/** The sliders of both limits. `changed()` is called after each movement. */
export function limitControls(document, changed) {
  const cell = chosenCell(document);
  const times = document.rows
    .map((row) => latencyOf(row, cell))
    .filter(Boolean)
    .map(slow);
  const drops = document.rows.map((row) => row.accuracy?.drop_points).filter(Number.isFinite);
  const { latency_ms: latency, drop_points: drop } = chosenLimits(document);
  // Rounded up, so that the right end of a slider includes every variant.
  const [least, most] = [smallest(times) * 0.98, largest(times) * 1.02];
  const ratio = most / least;
  return [
    times.length
      ? control({
          id: "max_ms",
          title: "p90 at most",
          unit: "ms",
          value: latency,
          place: (value) => (value > 0 ? (Math.log(value / least) / Math.log(ratio)) * STEPS : 0),
          at: (place) => Number((least * ratio ** (place / STEPS)).toPrecision(3)),
          changed,
        })
      : null,
    drops.length
      ? control({
          id: "max_drop",
          title: "Accuracy drop at most",
          unit: "points",
          value: drop,
          ...linear(largest(drops, Math.max(drop ?? 0, 1))),
          changed,
        })
      : null,
  ];
}

function linear(most) {
  return {
    place: (value) => (value / most) * STEPS,
    at: (place) => Number(((most * place) / STEPS).toPrecision(2)),
  };
}

function control({ id, title, unit, value, place, at, changed }) {
  const number = h("input", {
    id,
    type: "number",
    min: 0,
    step: "any",
    placeholder: "no limit",
    value,
    on: { input: () => choose(number.value) },
  });
  const slider = h("input", {
    type: "range",
    min: 0,
    max: STEPS,
    "aria-label": `${title}, ${unit}`,
    value: value === null ? STEPS : place(value),
    on: { input: () => choose(at(Number(slider.value)), number) },
  });
  const clear = h("button", { type: "button", on: { click: () => choose("", number) } }, "no limit");

  function choose(text, field = null) {
    if (field) field.value = text;
    else if (text !== "") slider.value = place(Number(text));
    if (text === "") slider.value = STEPS;
    write({ [id]: text === "" ? ANY : text }, { quiet: true });
    changed();
  }

  return h("div", { class: "control" }, h("label", { for: id }, title), slider, number, h("span", {}, unit), clear);
}
