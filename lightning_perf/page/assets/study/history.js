// The view "History": the trend of one metric over commits, a series per machine and setting, with its changes.

import { part } from "../components/blocks.js";
import { chart, chartText, ink } from "../components/chart.js";
import { largest } from "../core/numbers.js";
import * as format from "../text/format.js";
import { axisScale, changeText, METRICS, metricTitle, metricValue } from "./metrics.js";

export const history = { id: "history", title: "History", kinds: ["history"], render };

const HASH_CHARACTERS = 12;
const TICK_CHARACTERS = 7;

function render({ report }) {
  const trendOf = (series) =>
    chart({ title: description(report.metric, series), draw: () => trend(report.metric, series), height: 300 });
  return [
    part(report, "headline"),
    report.series.map((series, i) => part(report, `rows_${i + 1}`, { before: trendOf(series) })),
  ];
}

function description(metric, series) {
  const changes = series.changes.map(
    (change) => `${changeText(metric, change.estimate.value)} at ${short(change.after)}`,
  );
  const found = changes.length ? `Changes: ${changes.join(", ")}.` : "No change point.";
  return `${metricTitle(metric)} of each commit on ${series.name}. ${found} The table has the figures.`;
}

function trend(metric, series) {
  const { rows, changes } = series;
  const { factor, unit } = scale(metric, series);
  const starts = [0, ...changes.map((change) => change.row), rows.length];
  const levels = starts.slice(0, -1).map((start, i) => ({
    type: "scatter",
    mode: "lines",
    x: [start - 0.4, starts[i + 1] - 0.6],
    y: [factor * rows[start].level, factor * rows[start].level],
    line: { color: ink("ink-soft"), width: 2 },
    hoverinfo: "skip",
  }));
  const points = {
    type: "scatter",
    mode: "markers",
    x: rows.map((_, i) => i),
    y: rows.map((row) => factor * row.value),
    error_y: {
      type: "data",
      symmetric: false,
      array: rows.map((row) => factor * (row.high - row.value)),
      arrayminus: rows.map((row) => factor * (row.value - row.low)),
      color: ink("ink-soft"),
      thickness: 1,
      width: 0,
    },
    customdata: rows.map((row) => [
      chartText(rowName(row)),
      day(row.date_unix_s),
      metricValue(metric, row.value),
      format.countOf(row.runs, "run"),
      chartText(row.subject ?? ""),
    ]),
    hovertemplate: "%{customdata[2]} (%{customdata[3]})<br>%{customdata[0]}, %{customdata[1]}<br>%{customdata[4]}<extra></extra>",
    marker: { color: ink("arm-1"), size: 8, line: { width: 1, color: ink("panel") } },
  };
  const shapes = changes.flatMap((change) => {
    const color = ink(change.worse ? "high" : "good");
    const whole = { yref: "paper", y0: 0, y1: 1 };
    return [
      {
        type: "rect",
        ...whole,
        x0: change.earliest - 1,
        x1: change.latest,
        layer: "below",
        fillcolor: ink(change.worse ? "high-soft" : "good-soft"),
        line: { width: 0 },
      },
      { type: "line", ...whole, x0: change.row - 0.5, x1: change.row - 0.5, line: { color, width: 1.5 } },
    ];
  });
  const annotations = changes.map((change) => ({
    x: change.row - 0.5,
    yref: "paper",
    y: 1,
    yanchor: "bottom",
    showarrow: false,
    text: chartText(changeText(metric, change.estimate.value)),
    font: { color: ink(change.worse ? "high" : "good"), size: 12 },
  }));
  const most = innerWidth < 700 ? 4 : 10;
  const every = Math.max(1, Math.ceil(rows.length / most));
  const ticks = rows.map((_, i) => i).filter((i) => i % every === 0);
  const better = METRICS[metric].higherIsBetter ? "higher is better" : "lower is better";
  return {
    data: [...levels, points],
    layout: {
      showlegend: false,
      margin: { l: 56, r: 12, t: 24, b: 48 },
      shapes,
      annotations,
      xaxis: {
        range: [-0.7, rows.length - 0.3],
        tickvals: ticks,
        ticktext: ticks.map(
          (i) => `${chartText((rows[i].commit ?? "–").slice(0, TICK_CHARACTERS))}<br>${day(rows[i].date_unix_s).slice(5)}`,
        ),
        tickangle: 0,
        showgrid: false,
        zeroline: false,
      },
      yaxis: { title: `${metricTitle(metric)}${unit ? ` (${unit})` : ""}, ${better}`, measured: true, zeroline: false },
    },
  };
}

function scale(metric, { rows }) {
  return axisScale(metric, largest(rows.map((row) => row.high)));
}

function rowName({ commit, baselines }) {
  return baselines.length ? `${short(commit)} [${baselines.join(", ")}]` : short(commit);
}

function short(commit) {
  if (commit === null) return format.NOT_AVAILABLE;
  const [base, changes] = commit.split("+");
  return base.slice(0, HASH_CHARACTERS) + (changes === undefined ? "" : "+");
}

function day(unix_s) {
  return new Date(1000 * unix_s).toISOString().slice(0, 10);
}
