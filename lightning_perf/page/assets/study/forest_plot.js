// Candidates against the baseline: the change of every metric with its interval, and predicted next to measured gains.

import { chart, chartText, ink } from "../components/chart.js";
import { legend, section } from "../components/parts.js";
import { h } from "../core/dom.js";
import { largest, smallest } from "../core/numbers.js";
import * as format from "../text/format.js";
import { armAxis, armLegend, looks } from "./arms.js";
import { changeText, intervalText, isRatio, METRICS, metricTitle } from "./metrics.js";

const ROW_PX = 32;
const HELD = { true: "within the prediction", false: "outside the prediction", null: "not measured" };

/** The ratio to the baseline in every metric, and the difference of accuracy, each with its interval. */
export function forest(comparison) {
  const rows = Object.keys(METRICS).flatMap((metric) =>
    comparison.candidates.flatMap(({ arm, metrics }) =>
      metrics
        .filter((result) => result.metric === metric && result.estimate.value !== null)
        .map((result) => ({ arm, result })),
    ),
  );
  const ratios = rows.filter(({ result }) => isRatio(result.metric));
  const differences = rows.filter(({ result }) => !isRatio(result.metric));
  if (rows.length === 0) return null;
  return section(
    `Change from ${comparison.baseline}`,
    { definition: "change", aside: intervals(comparison) },
    comparison.candidates.length > 1 ? armLegend(comparison.arms) : null,
    h("p", { class: "aside" }, marks(comparison, differences.length > 0)),
    ratios.length ? ratioChart(comparison, ratios) : null,
    differences.length ? differenceChart(comparison, differences) : null,
  );
}

/** The predicted gain of mixed precision as a bar with the measured gain; null without a prediction. */
export function predictions(comparison) {
  const rows = comparison.candidates.filter((candidate) => candidate.prediction);
  if (rows.length === 0) return null;
  const draw = () => {
    const of = looks(comparison.arms);
    return {
      data: [
        {
          type: "bar",
          orientation: "h",
          y: rows.map((_, i) => i),
          base: rows.map(({ prediction }) => prediction.low),
          x: rows.map(({ prediction }) => prediction.high - prediction.low),
          customdata: rows.map(
            ({ prediction }) => `${format.ratio(prediction.low)} – ${format.ratio(prediction.high)}`,
          ),
          hovertemplate: "predicted: %{customdata}<extra></extra>",
          width: 0.5,
          marker: { color: ink("line-strong") },
        },
        ...rows
          .map(({ arm, prediction }, i) => ({ look: of.get(arm), measured: prediction.measured, i }))
          .filter(({ measured }) => measured.value !== null)
          .map(({ look, measured, i }) => interval(measured, i, look, `measured: ${format.ratio(measured.value)}`)),
      ],
      layout: {
        showlegend: false,
        xaxis: { title: `speed-up of a step over ${chartText(comparison.baseline)}` },
        yaxis: armAxis(
          rows.map(({ arm }) => ({ name: arm })),
          rows.map(({ prediction }) => HELD[prediction.held]),
        ),
        shapes: [upright(1)],
      },
    };
  };
  return section(
    "Mixed precision: predicted and measured",
    { definition: "prediction-of-mixed-precision" },
    legend([{ label: "predicted from the profiled run of the baseline", color: "line-strong" }]),
    chart({
      title: "The predicted speed-up, and the measured one with its interval.",
      draw,
      height: 80 + 64 * rows.length,
    }),
  );
}

function intervals({ candidates, confidence }) {
  const level = `${Number((100 * confidence).toPrecision(3))} % intervals`;
  return candidates.length > 1 ? `${level}, all candidates together` : level;
}

// The explanation of shaded areas and dashed lines.
function marks(comparison, differences) {
  const per = (share) => Number((100 * share).toPrecision(3));
  const margin = marginOf(comparison);
  return [
    `Shaded: times within ±${per(comparison.equivalence)} % are equivalent.`,
    differences && margin ? `Dashed: the margin of −${per(margin)} points.` : null,
    "↓ lower is better, ↑ higher.",
  ]
    .filter(Boolean)
    .join(" ");
}

function marginOf({ candidates }) {
  return candidates.find((candidate) => candidate.accuracy)?.accuracy.margin;
}

function ratioChart(comparison, rows) {
  const zone = 1 + comparison.equivalence;
  const [low, high] = span(rows, zone);
  const draw = () => ({
    data: [...traces(comparison, rows, 1), ...arrows(comparison, rows, low, high)],
    layout: {
      showlegend: false,
      xaxis: {
        type: "log",
        title: "ratio to the baseline",
        ...ticks(low, high),
      },
      yaxis: rowAxis(rows),
      shapes: [
        {
          type: "rect",
          x0: 1 / zone,
          x1: zone,
          yref: "paper",
          y0: 0,
          y1: 1,
          layer: "below",
          fillcolor: ink("good-soft"),
          line: { width: 0 },
        },
        upright(1),
      ],
    },
  });
  return chart({
    title: "The ratio to the baseline in every metric, with its interval.",
    draw,
    height: 70 + ROW_PX * rows.length,
  });
}

function differenceChart(comparison, rows) {
  const margin = marginOf(comparison);
  const draw = () => ({
    data: traces(comparison, rows, 100),
    layout: {
      showlegend: false,
      xaxis: { title: "difference in percentage points" },
      yaxis: rowAxis(rows),
      shapes: [
        upright(0),
        ...(margin ? [{ ...upright(-100 * margin), line: { color: ink("high"), dash: "dash", width: 1.5 } }] : []),
      ],
    },
  });
  return chart({
    title: "The difference of accuracy from the baseline, with its interval.",
    draw,
    height: 70 + ROW_PX * rows.length,
  });
}

function traces(comparison, rows, factor) {
  const of = looks(comparison.arms);
  return rows.map(({ arm, result }, i) => {
    const { estimate } = result;
    const figures = `${changeText(result.metric, estimate.value)} (${result.deterministic ? "the same in every run" : intervalText(result.metric, estimate)})`;
    return interval(estimate, i, of.get(arm), `${metricTitle(result.metric)}: ${figures}`, {
      factor,
      certain: result.deterministic,
    });
  });
}

// A point with its interval, or a hollow point without one.
function interval(estimate, row, look, words, { factor = 1, certain = false } = {}) {
  const known = estimate.low !== null && estimate.high !== null;
  return {
    type: "scatter",
    mode: "markers",
    x: [factor * estimate.value],
    y: [row],
    customdata: [words],
    hovertemplate: "%{customdata}<extra></extra>",
    marker: {
      color: look.color,
      symbol: known || certain ? look.marker : `${look.marker}-open`,
      size: 10,
      line: { width: known || certain ? 1 : 2, color: known || certain ? ink("panel") : look.color },
    },
    error_x: known
      ? {
          type: "data",
          symmetric: false,
          array: [factor * (estimate.high - estimate.value)],
          arrayminus: [factor * (estimate.value - estimate.low)],
          color: look.color,
          thickness: 2.5,
          width: 0,
        }
      : undefined,
  };
}

function rowAxis(rows) {
  return {
    tickvals: rows.map((_, i) => i),
    ticktext: rows.map(({ result }, i) =>
      i && rows[i - 1].result.metric === result.metric
        ? ""
        : `${metricTitle(result.metric)} ${METRICS[result.metric].higherIsBetter ? "↑" : "↓"}`,
    ),
    range: [rows.length - 0.4, -0.6],
    showgrid: false,
    zeroline: false,
    fixedrange: true,
  };
}

// The smallest and the largest value in the chart.
// Intervals beyond a factor of a thousand extend beyond the chart, so that the rest stays visible. Labels give their ends.
function span(rows, zone) {
  const within = (end) => (end > 0 ? Math.min(Math.max(end, 1e-3), 1e3) : end);
  const ends = rows.flatMap(({ result: { estimate } }) => [
    estimate.value,
    within(estimate.low),
    within(estimate.high),
  ]);
  const values = [...ends.filter((value) => value > 0), zone, 1 / zone];
  return [smallest(values), largest(values)];
}

// An arrow where an interval extends beyond the chart.
function arrows(comparison, rows, low, high) {
  const of = looks(comparison.arms);
  const arrow = (x, row, arm, symbol) => ({
    type: "scatter",
    mode: "markers",
    x: [x],
    y: [row],
    hoverinfo: "skip",
    marker: { color: of.get(arm).color, symbol, size: 10 },
  });
  return rows.flatMap(({ arm, result: { estimate } }, i) => [
    ...(estimate.low !== null && estimate.low < low ? [arrow(low, i, arm, "triangle-left")] : []),
    ...(estimate.high !== null && estimate.high > high ? [arrow(high, i, arm, "triangle-right")] : []),
  ]);
}

// Round ratios over the range of the chart, including 1.
function ticks(low, high) {
  const room = (high / low) ** 0.06;
  const range = [Math.log10(low / room), Math.log10(high * room)];
  if (high / low > 8) return { range };
  const step =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1].find(
      (size) => (high - low) / size <= (innerWidth < 700 ? 4 : 7),
    ) ?? 1;
  const first = Math.ceil(low / room / step);
  const count = Math.floor((high * room) / step) - first + 1;
  const tickvals = Array.from({ length: count }, (_, i) => Number(((first + i) * step).toFixed(3))).filter(
    (tick) => tick > 0,
  );
  return { range, tickvals, ticktext: tickvals.map(String), tickangle: 0 };
}

function upright(x) {
  return { type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color: ink("ink-soft"), width: 1 } };
}
