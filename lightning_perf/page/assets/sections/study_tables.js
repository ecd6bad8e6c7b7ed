// A study's figures as tables: results, gates, arms, runs, and what differs between the arms.

import { armName } from "../arms.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { changeText, intervalText, isRatio, METRICS, metricHead, metricTitle, metricValue } from "../metrics.js";
import { section } from "../parts.js";
import { table } from "../table.js";

/** Each candidate against the baseline in every metric. */
export function results({ arms, baseline, candidates }) {
  const rows = candidates.flatMap(({ arm, metrics }) => metrics.map((result) => ({ arm, ...result })));
  return section(
    "Differences",
    { definition: "change", aside: `against ${baseline}` },
    table({
      id: "results",
      caption: "Each candidate against the baseline in every metric",
      rows,
      columns: [
        text("metric", "Metric", (row) => metricTitle(row.metric)),
        ...(candidates.length > 1 ? [arm(arms, "Candidate")] : []),
        {
          ...number("change", "Change", (row) => row.estimate.value),
          show: (value, row) => changeText(row.metric, value),
        },
        {
          ...text("interval", "Interval", (row) =>
            row.deterministic && row.estimate.low === null
              ? "the same in every run"
              : intervalText(row.metric, row.estimate),
          ),
          kind: "number",
          definition: "interval",
        },
        { ...number("p", "Exact p", (row) => row.exact.p), show: significant, definition: "exact-p" },
        {
          ...number("robust", "Hodges–Lehmann", (row) => row.robust.value),
          show: (value, row) =>
            value === null
              ? format.NOT_AVAILABLE
              : `${changeText(row.metric, value)}${row.robust.low === null ? "" : ` (${intervalText(row.metric, row.robust)})`}`,
          definition: "hodges-lehmann",
        },
        {
          ...number("detectable", "Could see", (row) => row.detectable),
          show: (value, row) =>
            value === null
              ? format.NOT_AVAILABLE
              : `${Number((100 * value).toPrecision(2))} ${isRatio(row.metric) ? "%" : "pt"}`,
          definition: "could-see",
        },
      ],
    }),
  );
}

/** The gates and how they were judged; null without any. */
export function gates({ gates: rows, arms, candidates }) {
  if (!rows.length) return null;
  const figure = (key, title) => ({ ...number(key, title, (row) => row[key]), show: significant });
  return section(
    "Gates",
    { definition: "gate" },
    table({
      id: "gates",
      caption: "Gates",
      rows,
      columns: [
        { ...text("gate", "Gate", (row) => row.gate), code: true },
        ...(candidates.length > 1 ? [arm(arms, "Candidate")] : []),
        { ...text("outcome", "Outcome", (row) => row.outcome), show: badge },
        figure("value", "Value"),
        figure("low", "Low"),
        figure("high", "High"),
        ...(rows.some((row) => row.reason) ? [text("reason", "Why", (row) => row.reason)] : []),
      ],
    }),
  );
}

/** Whether accuracy was kept and how much runs scatter, by candidate; null where there is nothing of either. */
export function scatter({ arms, candidates }) {
  const rows = candidates.flatMap((candidate) =>
    [
      ["step time", candidate.time_spread],
      ["accuracy", candidate.accuracy_spread],
    ]
      .filter(([, spread]) => spread)
      .map(([what, spread]) => ({ arm: candidate.arm, what, ...spread })),
  );
  if (rows.length === 0) return null;
  return section(
    "Scatter of the runs",
    { definition: "scatter", aside: "standard deviation of the candidate over that of the baseline" },
    table({
      id: "scatter",
      caption: "Scatter of the runs",
      rows,
      columns: [
        text("what", "Of", (row) => row.what),
        ...(candidates.length > 1 ? [arm(arms, "Candidate")] : []),
        { ...number("ratio", "Ratio", (row) => row.ratio.value), show: format.ratio },
        {
          ...text("interval", "Interval", (row) =>
            row.ratio.low === null
              ? (row.reason ?? null)
              : `${format.ratio(row.ratio.low)} to ${format.ratio(row.ratio.high)}`,
          ),
          kind: "number",
        },
        { ...number("p", "Brown–Forsythe p", (row) => row.p), show: significant },
        { ...number("power", "Power", (row) => row.power), show: format.share },
        {
          ...number("needed", "Runs needed", (row) => row.runs_needed),
          show: (value, row) => value ?? (row.power === null ? format.NOT_AVAILABLE : "more than 200"),
        },
      ],
    }),
  );
}

/** What the runs of each arm came to: how many, why others are not among them, collapsed ones, the accuracy goal. */
export function armsPart({ arms, candidates, accuracy_goal: goal }) {
  const collapse = new Map(candidates.map((candidate) => [candidate.arm, candidate.collapse_p]));
  return section(
    "Arms",
    { definition: "arm" },
    table({
      id: "arms",
      caption: "Arms",
      rows: arms,
      columns: [
        arm(arms, "Arm", "name"),
        { ...number("used", "Runs used", (row) => row.used), show: format.count },
        text("left_out", "Left out", (row) => counts(row.left_out) || "none"),
        {
          ...number("collapsed", "Collapsed", (row) => row.collapsed.value),
          show: (value, { collapsed }) =>
            value === null || collapsed.low === null
              ? format.share(value)
              : `${format.share(value)} (${format.share(collapsed.low)} to ${format.share(collapsed.high)})`,
          definition: "collapsed",
        },
        ...([...collapse.values()].some((p) => p !== null)
          ? [{ ...number("collapse_p", "Fisher p", (row) => collapse.get(row.name) ?? null), show: significant }]
          : []),
        ...(goal === null
          ? []
          : [
              { ...number("reached", `Reached ${goal}`, (row) => row.reached_goal), show: format.count },
              {
                ...number("median", "Median time to it", (row) => row.median_time_to_accuracy_s),
                show: (value) => (value === null ? "not by half" : format.duration(value * 1e9)),
              },
            ]),
      ],
    }),
  );
}

/** Mean, spread and quartiles of every metric and arm. */
export function summaries({ arms }) {
  const rows = Object.keys(METRICS).flatMap((metric) =>
    arms.filter((item) => item.metrics[metric]?.n).map((item) => ({ metric, arm: item.name, ...item.metrics[metric] })),
  );
  const figure = (key, title) => ({
    ...number(key, title, (row) => row[key]),
    show: (value, row) => metricValue(row.metric, value),
  });
  return section(
    "Metrics",
    { definition: "box-and-whisker", aside: "over the runs used; accuracy without collapsed runs" },
    table({
      id: "metrics",
      caption: "Every metric of every arm",
      rows,
      columns: [
        text("metric", "Metric", (row) => metricHead(row.metric)),
        arm(arms, "Arm"),
        { ...number("n", "Runs", (row) => row.n), show: format.count },
        figure("mean", "Mean"),
        figure("sd", "SD"),
        figure("min", "Least"),
        figure("q1", "q1"),
        figure("median", "Median"),
        figure("q3", "q3"),
        figure("p90", "p90"),
        figure("max", "Most"),
      ],
    }),
  );
}

/** Every run, also those left out, by start. */
export function runs({ arms, runs: rows, blocked }) {
  const known = Object.keys(METRICS).filter((metric) => rows.some((row) => Number.isFinite(row.values[metric])));
  return section(
    "Runs",
    { definition: "run-of-a-study", aside: "in order of start" },
    table({
      id: "runs",
      caption: "Every run",
      rows,
      columns: [
        { ...text("run", "Run", (row) => row.run_id), code: true },
        arm(arms, "Arm"),
        ...(blocked ? [{ ...number("block", "Block", (row) => row.block), show: format.count }] : []),
        { ...text("status", "Counted", status), show: (value, row) => (value === "yes" ? value : badge(value, row)) },
        ...known.map((metric) => ({
          ...number(metric, metricHead(metric), (row) => row.values[metric]),
          show: (value) => metricValue(metric, value),
        })),
      ],
    }),
  );
}

/** What differs between the arms and may; null when nothing does. */
export function differences({ arms, baseline, candidates }) {
  const rows = candidates.flatMap((candidate) => candidate.differences.map((row) => ({ arm: candidate.arm, ...row })));
  if (rows.length === 0) return null;
  return section(
    "What differs",
    { definition: "fair-comparison", aside: "all of it declared" },
    differenceTable(rows, [...(candidates.length > 1 ? [arm(arms, "Candidate")] : [])], baseline, [
      text("allowed", "Allowed as", (row) => row.allowed_by),
    ]),
  );
}

/** The facts in which arms differ and must not. */
export function unfairRows({ rows, baseline }) {
  return section(
    "Differs besides what is under test",
    { definition: "fair-comparison" },
    differenceTable(rows, [text("arm", "Candidate", (row) => row.arm)], baseline, []),
  );
}

function differenceTable(rows, before, baseline, after) {
  return table({
    id: "differences",
    caption: "What differs",
    rows,
    columns: [
      { ...text("fact", "Fact", (row) => row.fact), code: true },
      ...before,
      text("baseline", baseline, (row) => row.baseline.join(", ")),
      text("candidate", "Candidate has", (row) => row.candidate.join(", ")),
      ...after,
    ],
  });
}

function status(row) {
  if (row.left_out !== null) return `no: ${row.left_out}`;
  return row.collapsed ? "collapsed" : "yes";
}

function badge(value) {
  return h("span", { class: `outcome ${/^[a-z]+$/.test(value) ? value : "left"}` }, value);
}

function counts(reasons) {
  return Object.entries(reasons)
    .map(([reason, count]) => `${count} ${reason}`)
    .join(", ");
}

function significant(value) {
  return value === null ? format.NOT_AVAILABLE : String(Number(value.toPrecision(3)));
}

function arm(arms, title, key = "arm") {
  return { ...text(key, title, (row) => row[key]), show: (name) => armName(arms, name) };
}

function text(key, title, value) {
  return { key, title, kind: "text", csv: key, value };
}

function number(key, title, value) {
  return { key, title, kind: "number", csv: key, value };
}
