// The view "History": the trend of one metric over commits, a series per machine and setting, with its changes.

import * as column from "../components/column.js";
import { chart, chartText, ink } from "../components/chart.js";
import { facts, notes, section } from "../components/parts.js";
import { table } from "../components/table.js";
import { h } from "../core/dom.js";
import { largest } from "../core/numbers.js";
import * as format from "../text/format.js";
import { axisScale, changeText, intervalText, METRICS, metricHead, metricTitle, metricValue } from "./metrics.js";

export const history = { id: "history", title: "History", kinds: ["history"], render };

const DIGITS = 4; // one more than elsewhere: rows differ by a few per cent
const HASH_CHARACTERS = 12;
const TICK_CHARACTERS = 7;
const NAMED_DIFFERENCES = 3;

function render({ report }) {
  return [
    h("p", { class: "headline" }, headline(report)),
    h("p", { class: "aside" }, context(report)),
    notes(report.notes),
    report.series.map((series, i) => seriesPart(report, series, i)),
  ];
}

function headline({ metric, quality, series }) {
  const changes = series.flatMap((one) => one.changes);
  const count = (worse, word) => {
    const number = changes.filter((change) => change.worse === worse).length;
    return number ? `${format.countOf(number, "change")} for the ${word}` : null;
  };
  const found = [count(true, "worse"), count(false, "better")].filter(Boolean).join(", ") || "no change point";
  const rows = series.reduce((sum, one) => sum + one.rows.length, 0);
  const where = series.length > 1 ? ` in ${series.length} series` : "";
  const title = quality ? `${metricTitle(metric)} (${quality})` : metricTitle(metric);
  return `History of the ${title}: ${found} in ${format.countOf(rows, "row")}${where}.`;
}

function context({ store, since, allowed, confidence }) {
  return [
    store,
    since ? `since ${since}` : null,
    allowed.length ? `may differ: ${allowed.join(", ")}` : null,
    `${Number((100 * confidence).toPrecision(3))} % intervals`,
  ]
    .filter(Boolean)
    .join(" · ");
}

function seriesPart(report, series, number) {
  const { metric } = report;
  const { factor, unit } = scale(metric, series);
  const most = factor * largest(series.rows.map((row) => row.high));
  const places = Math.min(3, Math.max(0, DIGITS - 1 - Math.floor(Math.log10(most || 1))));
  return section(
    report.series.length > 1 ? `Series ${number + 1}: ${series.name}` : series.name,
    { definition: "series-of-a-history", aside: series.noise === null ? null : `rows vary by ${format.share(series.noise)}` },
    series.differs.length ? h("p", {}, differences(series.differs)) : null,
    series.note ? h("p", { class: "aside" }, series.note) : null,
    series.changes.map((change) => changePart(metric, series, change)),
    chart({ title: description(metric, series), draw: () => trend(metric, series), height: 300 }),
    table({
      id: `rows-${number + 1}`,
      caption: `Rows of ${series.name}`,
      rows: series.rows.map((row, i) => ({ ...row, number: i, change: series.changes.find((one) => one.row === i) ?? null })),
      sort: "number",
      columns: [
        column.count("number", "Row", { value: (row) => row.number + 1 }),
        column.text("commit", "Commit", { value: (row) => rowName(row), code: true }),
        column.text("subject", "Message", { value: (row) => row.subject ?? "", optional: 1000 }),
        column.text("date", "Date", { value: (row) => day(row.date_unix_s) }),
        column.count("runs", "Runs"),
        figure("value", `${metricHead(metric).split(",")[0]}${unit ? ` (${unit})` : ""}`),
        figure("low", "Minimum", { optional: 800 }),
        figure("high", "Maximum", { optional: 800 }),
        figure("level", "Level", { definition: "level" }),
        column.text("change", "Change", {
          value: (row) => (row.change ? changeText(metric, row.change.estimate.value) : ""),
          show: (value, row) => (row.change ? badge(row.change, value) : ""),
          definition: "change-point",
        }),
      ],
    }),
  );

  function figure(key, title, more = {}) {
    return column.number(key, title, { show: (value) => (factor * value).toFixed(places), ...more });
  }
}

function changePart(metric, series, change) {
  const first = series.rows[change.earliest];
  const last = series.rows[change.latest];
  const place =
    change.earliest === change.latest
      ? short(change.after)
      : `${short(change.after)}, or any row from ${short(first.commit)} to ${short(last.commit)}`;
  const listed = change.commits.map(({ commit, subject }) =>
    h("li", {}, h("code", {}, short(commit)), subject ? ` ${subject}` : ""),
  );
  const hidden = (change.commit_count ?? listed.length) - listed.length;
  return h(
    "div",
    { class: "captures sentences" },
    h(
      "p",
      {},
      badge(change, changeText(metric, change.estimate.value)),
      ` (${intervalText(metric, change.estimate)}) on ${day(series.rows[change.row].date_unix_s)}`,
    ),
    facts([
      ["Before", short(change.before)],
      ["First row after", place, "place-of-a-change"],
    ]),
    listed.length
      ? h(
          "details",
          {},
          h("summary", {}, change.commit_count === null ? "Measured commits" : `Commits in question: ${change.commit_count}`),
          h("ul", { class: "sentences" }, hidden > 0 ? h("li", {}, `… ${hidden} earlier`) : null, listed),
        )
      : null,
  );
}

function badge(change, text) {
  return h("span", { class: `outcome ${change.worse ? "slower" : "faster"}` }, `${change.worse ? "worse" : "better"} ${text}`);
}

function differences(differs) {
  const named = differs
    .slice(0, NAMED_DIFFERENCES)
    .map(({ fact, baseline, candidate }) => `${fact} (${candidate.join(", ")}, there ${baseline.join(", ")})`);
  const more = differs.length - named.length;
  return `A series of its own, because it differs from series 1 in ${[...named, more ? `${more} more facts` : null].filter(Boolean).join(", ")}.`;
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
