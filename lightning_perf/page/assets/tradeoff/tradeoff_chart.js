// Median latency against accuracy. Areas show sizes, a staircase connects unbeaten variants, a ring marks the recommended one.

import { chart, chartText, ink } from "../components/chart.js";
import { h, svg } from "../core/dom.js";
import { largest, smallest } from "../core/numbers.js";
import * as format from "../text/format.js";
import { keeps, latencyOf, slow } from "./limits.js";

const AREA_PX = 46; // diameter of the largest variant
const LEAST_PX = 8;
const RING_PX = 14; // additional width of the ring
const HEIGHT_PX = 440;
const LINE_PX = 15;
const CHARACTER_PX = 6.4;
const STEPS = [0, 1, 2, 3, 4]; // lines above or below its point at which a name may be placed
const MOST_NAMES = 12; // with more variants, or on a narrow page, only the important ones have their names on the chart

/** The chart. `limits()` returns the current limits. */
export function tradeoffChart(document, cell, limits) {
  const points = document.rows
    .map((row) => ({ row, latency: latencyOf(row, cell) }))
    .filter(({ row, latency }) => row.reason === null && latency);
  if (points.length === 0) return null;
  const measured = points.every(({ row }) => row.accuracy);
  const height = ({ row }, i) => (measured ? (100 * row.accuracy.correct) / row.accuracy.n : -i);
  const placed = points.map((point, i) => ({ ...point, x: point.latency.p50_ms, y: height(point, i) }));
  const draw = () => ({
    data: [
      ...(measured ? [staircase(placed, cell)] : []),
      ...placed.map((point) => variant(point, document, cell, keeps(point.row, cell, limits()))),
      ...placed
        .filter(({ row }) => row.variant === document.recommendation?.variant)
        .map((point) => ring(point, document)),
    ],
    layout: {
      showlegend: false,
      hovermode: "closest",
      xaxis: { type: "log", title: "latency of a call: median, bar from p10 to p90", ...timeTicks(placed) },
      yaxis: measured
        ? { title: `accuracy on ${format.count(document.validation_inputs)} held-out inputs, %`, range: yRange(placed), measured: true }
        : { title: "accuracy was not measured", showticklabels: false, showgrid: false },
      annotations: names(placed, document, cell, measured ? yRange(placed) : null),
      shapes: limitLines(limits(), document, measured),
    },
  });
  return chart({
    title: "Median latency against accuracy, with one point per variant. The table below has the figures.",
    draw,
    height: HEIGHT_PX,
  });
}

function variant({ row, latency, x, y }, document, cell, kept) {
  const color = ink(row === document.rows[0] ? "original" : cell.front.includes(row.variant) ? "accent" : "beaten");
  const accuracy = row.accuracy;
  return {
    type: "scatter",
    mode: "markers",
    x: [x],
    y: [y],
    opacity: kept ? 1 : 0.25,
    customdata: [[chartText(row.variant), tooltip(row, latency)]],
    hovertemplate: "<b>%{customdata[0]}</b><br>%{customdata[1]}<extra></extra>",
    marker: {
      color: `${color}88`,
      size: diameter(row, document),
      line: { color, width: 1.5 },
    },
    error_x: interval(latency.p10_ms, x, slow(latency), color, 2),
    error_y: accuracy ? interval(100 * accuracy.low, y, 100 * accuracy.high, color, 1) : undefined,
  };
}

/** The legend of sizes: the largest variant, and a quarter and a sixteenth of its size. */
export function sizeLegend(document) {
  const biggest = largest(document.rows.map((row) => row.size_bytes ?? 0));
  if (biggest <= 0) return null;
  const items = [biggest, biggest / 4, biggest / 16].map((size) => ({ size, across: diameter({ size_bytes: size }, document) }));
  return h(
    "ul",
    { class: "legend", "aria-label": "Size of a variant's files" },
    items.map(({ size, across }) =>
      h(
        "li",
        {},
        svg(
          "svg",
          { width: across + 2, height: across + 2, "aria-hidden": "true" },
          svg("circle", { cx: across / 2 + 1, cy: across / 2 + 1, r: across / 2, class: "size-mark" }),
        ),
        format.bytes(Math.round(size)),
      ),
    ),
  );
}

// The area of a variant shows the size of its files.
function diameter(row, { rows }) {
  const biggest = largest(rows.map((item) => item.size_bytes ?? 1));
  return Math.max(LEAST_PX, AREA_PX * Math.sqrt((row.size_bytes ?? 1) / biggest));
}

function tooltip(row, latency) {
  const accuracy = row.accuracy;
  return [
    `p50 ${format.duration(latency.p50_ms * 1e6)}, p90 ${format.duration(slow(latency) * 1e6)}`,
    accuracy
      ? `accuracy ${format.share(accuracy.correct / accuracy.n)} (${format.share(accuracy.low)} – ${format.share(accuracy.high)})`
      : "accuracy not measured",
    row.size_bytes === null ? null : format.bytes(row.size_bytes),
  ]
    .filter(Boolean)
    .map(chartText)
    .join("<br>");
}

function interval(low, middle, high, color, thickness) {
  return {
    type: "data",
    symmetric: false,
    array: [Math.max(0, high - middle)],
    arrayminus: [Math.max(0, middle - low)],
    color,
    thickness,
    width: 0,
  };
}

function ring({ row, x, y }, document) {
  return {
    type: "scatter",
    mode: "markers",
    x: [x],
    y: [y],
    hoverinfo: "skip",
    marker: {
      symbol: "circle-open",
      size: diameter(row, document) + RING_PX,
      color: ink("good"),
      line: { width: 3, color: ink("good") },
    },
  };
}

// If two variants are equally fast within the noise, the staircase goes through the more accurate one.
function staircase(placed, { front }) {
  const best = [];
  for (const { x, y } of placed.filter(({ row }) => front.includes(row.variant)).toSorted((a, b) => a.x - b.x)) {
    if (best.length === 0 || y > best.at(-1).y) best.push({ x, y });
  }
  if (best.length) best.push({ x: largest(placed.map(({ x }) => x)) * 1.3, y: best.at(-1).y });
  return {
    type: "scatter",
    mode: "lines",
    x: best.map(({ x }) => x),
    y: best.map(({ y }) => y),
    hoverinfo: "skip",
    line: { shape: "hv", dash: "dash", width: 1.5, color: ink("accent") },
  };
}

function limitLines({ latency_ms: most, drop_points: drop }, { rows: [original] }, measured) {
  const line = { color: ink("high"), width: 1.5, dash: "dot" };
  const across = { yref: "paper", y0: 0, y1: 1 };
  const lines = most > 0 ? [{ type: "line", x0: most, x1: most, ...across, line }] : [];
  if (drop !== null && measured && original.accuracy) {
    const y = (100 * original.accuracy.correct) / original.accuracy.n - drop;
    lines.push({ type: "line", y0: y, y1: y, xref: "paper", x0: 0, x1: 1, line });
  }
  return lines;
}

// Every interval of accuracy, with room for names.
function yRange(placed) {
  const low = smallest(placed.map(({ row }) => 100 * row.accuracy.low));
  const high = largest(placed.map(({ row }) => 100 * row.accuracy.high));
  const room = 0.08 * (high - low || 1);
  return [low - room, high + room];
}

// 1, 2 and 5 of each power of ten, with their units.
function timeTicks(placed) {
  const ends = placed.flatMap(({ latency }) => [latency.p10_ms, slow(latency)]);
  const low = Math.log10(smallest(ends) / 1.25);
  const high = Math.log10(largest(ends) * 1.45);
  const decades = Array.from({ length: Math.ceil(high) - Math.floor(low) + 1 }, (_, i) => Math.floor(low) + i);
  const digits = high - low > 1 && innerWidth < 700 ? [1] : [1, 2, 5];
  const tickvals = decades.flatMap((decade) => digits.map((digit) => digit * 10 ** decade));
  return {
    range: [low, high],
    tickangle: 0,
    tickvals,
    ticktext: tickvals.map((value) => format.duration(Number((value * 1e6).toPrecision(3)))),
  };
}

// Names next to their points, each at the first height where it covers no other name, and inside the chart.
function names(all, document, cell, heights) {
  const width = Math.min(innerWidth, 2560) - (innerWidth > 820 ? 330 : 110);
  const { range } = timeTicks(all);
  const [bottom, top] = heights ?? [smallest(all.map(({ y }) => y)) - 1, largest(all.map(({ y }) => y)) + 1];
  const important = ({ row }) =>
    row === document.rows[0] || row.variant === document.recommendation?.variant || cell.front.includes(row.variant);
  const placed = all.length > (innerWidth < 700 ? MOST_NAMES / 2 : MOST_NAMES) ? all.filter(important) : all;
  const taken = [];
  return placed
    .toSorted((a, b) => b.y - a.y || a.x - b.x)
    .map(({ row, x, y }) => {
      const left = ((Math.log10(x) - range[0]) / (range[1] - range[0])) * width;
      const at = ((top - y) / (top - bottom)) * (HEIGHT_PX - 70);
      const text = row.variant.length > 30 ? `${row.variant.slice(0, 16)}…${row.variant.slice(-12)}` : row.variant;
      const half = (text.length * CHARACTER_PX) / 2 + 4;
      const middle = Math.max(half, Math.min(width - half, left));
      const free = (offset) =>
        taken.every((box) => Math.abs(box.x - middle) > box.half + half || Math.abs(box.y - at - offset) > LINE_PX);
      const radius = (diameter(row, document) + RING_PX) / 2 + 10;
      const offsets = STEPS.flatMap((step) => [-radius - step * LINE_PX, radius + step * LINE_PX]);
      const offset = offsets.find(free) ?? offsets[0];
      taken.push({ x: middle, y: at + offset, half });
      return {
        x: Math.log10(x),
        y,
        text: chartText(text),
        ax: middle - left,
        ay: offset,
        showarrow: true,
        arrowhead: 0,
        arrowwidth: 0.7,
        arrowcolor: ink("line-strong"),
        font: { size: 11, color: ink("ink") },
        bgcolor: `${ink("panel")}cc`,
      };
    });
}
