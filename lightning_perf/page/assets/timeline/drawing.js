// Draws the lanes of the timeline on canvases, in the colors of the style sheet.

import { color } from "../core/theme.js";
import { binAt, spanOf } from "./lanes.js";

/** The colors of a drawing, read once from the style sheet. */
export function palette() {
  const known = new Map();
  return (name) => {
    if (!known.has(name)) known.set(name, color(/^[a-z][\w-]*$/i.test(name) ? name : "unknown") || color("unknown"));
    return known.get(name);
  };
}

/** Prepare a canvas for a drawing: its size in pixels of the screen, empty. Null if it is not on display. */
export function prepare(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  if (!width || !height) return null;
  const scale = window.devicePixelRatio || 1;
  [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  return { pen, width, height };
}

/**
 * Draw the parts of a lane.
 *
 * @param style "largest": the part with the most time in each column; "stacked": all parts, in the order of their names;
 *   "partial": like "largest", but as high as the parts together.
 */
export function drawParts(canvas, { item, lane, axis, range, ink, style }) {
  const area = prepare(canvas);
  if (!area || !lane) return;
  const { pen, width, height } = area;
  const colors = lane.names.map(ink);
  eachColumn(item, lane, axis, range, width, (x, wide, shares, total) => {
    if (!total) return;
    if (style === "stacked") {
      let y = height;
      shares.forEach((share, code) => {
        if (!share) return;
        const tall = (height * share) / total;
        pen.fillStyle = colors[code];
        pen.fillRect(x, y - tall, wide, tall);
        y -= tall;
      });
      return;
    }
    let [most, sum] = [0, 0];
    shares.forEach((share, code) => {
      sum += share;
      if (share > shares[most]) most = code;
    });
    if (!shares[most]) return;
    const tall = style === "partial" ? Math.max(1, (height * Math.min(sum, total)) / total) : height;
    pen.fillStyle = colors[most];
    pen.fillRect(x, height - tall, wide, tall);
  });
}

/** Draw the edges of steps, and the numbers of as many as there is room for. */
export function drawSteps(canvas, { item, axis, range, ink, marked }) {
  const area = prepare(canvas);
  if (!area) return;
  const { pen, width, height } = area;
  const x = (time) => (width * (axis.place(time) - range.from)) / (range.to - range.from);
  pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  pen.textBaseline = "middle";
  const shown = item.steps
    .map((step) => ({ ...step, left: x(step.start), right: x(step.end) }))
    .filter(({ left, right }) => right >= 0 && left <= width);
  for (const { left, right, complete } of shown) {
    pen.fillStyle = ink(complete ? "line-strong" : "line");
    pen.fillRect(left, 0, Math.max(1, right - left - 1), height);
  }
  pen.fillStyle = ink("ink");
  const room = Math.min(width, shown[shown.length - 1]?.right ?? 0) / Math.max(shown.length, 1);
  const need = pen.measureText(String(shown[shown.length - 1]?.number ?? "")).width + 12;
  const every = [1, 2, 5, 10, 20, 50, 100, 200, 500].find((stride) => stride * room >= need) ?? 1000;
  for (const step of shown) {
    if (step.number % every) continue;
    const text = marked ? `${every === 1 && step.right - step.left > 70 ? "Step " : ""}${step.number}` : "Recording";
    const start = Math.max(step.left, 0) + 5;
    const end = every === 1 ? Math.min(step.right, width) : width;
    if (start + pen.measureText(text).width < end - 2) pen.fillText(text, start, height / 2 + 0.5);
  }
}

/** Draw a step function as a filled area. */
export function drawSeries(canvas, { series, most, axis, range, fill }) {
  const area = prepare(canvas);
  if (!area || !series.time.length) return;
  const { pen, width, height } = area;
  const x = (time) => (width * (axis.place(time) - range.from)) / (range.to - range.from);
  const y = (value) => height - ((height - 2) * value) / Math.max(most, 1);
  pen.beginPath();
  pen.moveTo(x(series.time[0]), height);
  series.time.forEach((time, i) => {
    pen.lineTo(x(time), y(series.value[Math.max(0, i - 1)]));
    pen.lineTo(x(time), y(series.value[i]));
  });
  const last = x(Math.max(axis.last, series.time[series.time.length - 1]));
  pen.lineTo(last, y(series.value[series.value.length - 1]));
  pen.lineTo(last, height);
  pen.globalAlpha = 0.65;
  pen.fillStyle = fill;
  pen.fill();
}

/** Mark the bins that hold a name, with darker marks for larger shares. */
export function drawMarks(canvas, { item, bins, axis, range, ink }) {
  const area = prepare(canvas);
  if (!area) return;
  const { pen, width, height } = area;
  const x = (time) => (width * (axis.place(time) - range.from)) / (range.to - range.from);
  pen.fillStyle = ink("accent");
  for (const { bin, share } of bins) {
    const { start, end } = spanOf(item, bin);
    pen.globalAlpha = 0.35 + 0.65 * share;
    pen.fillRect(x(start), 0, Math.max(1.5, x(end) - x(start)), height);
  }
}

// Calls draw(x, width, shares, total) for each column of pixels with a step in it. Shares are sums over its bins.
function eachColumn(item, lane, axis, range, width, draw) {
  const per = (range.to - range.from) / width;
  const shares = new Array(lane.names.length);
  const columns = Math.ceil(width);
  for (let column = 0; column < columns; column += 1) {
    const [start, end] = [axis.time(range.from + column * per), axis.time(range.from + (column + 1) * per)];
    const first = firstBin(item, start);
    if (first < 0) continue;
    let total = 0;
    shares.fill(0);
    for (let bin = first; bin < lane.count.length; bin += 1) {
      const span = spanOf(item, bin);
      if (span.start >= end) break;
      const part = Math.min(span.end, end) - Math.max(span.start, start);
      if (part <= 0) continue;
      total += 255 * part;
      for (let at = lane.offset[bin]; at < lane.offset[bin] + 2 * lane.count[bin]; at += 2) {
        shares[lane.data[at]] += lane.data[at + 1] * part;
      }
    }
    draw(column, 1, shares, total);
  }
}

// The bin at an instant, or the first bin of the next step.
function firstBin(item, time) {
  const found = binAt(item, time);
  if (found >= 0) return found;
  let [low, high] = [0, item.steps.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (item.steps[middle].start < time) low = middle + 1;
    else high = middle;
  }
  return low < item.steps.length ? low * item.bins : -1;
}
