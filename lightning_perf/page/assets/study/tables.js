// The figures of a study as tables: results, gates, arms, runs, and the differences between the arms.

import * as column from "../components/column.js";
import { section } from "../components/parts.js";
import { table, tableSection } from "../components/table.js";
import { h } from "../core/dom.js";
import * as format from "../text/format.js";
import { armName } from "./arms.js";
import { changeText, detectableText, intervalText, METRICS, metricHead, metricTitle, metricValue } from "./metrics.js";

/** Each candidate compared with the baseline in every metric. */
export function results({ arms, baseline, candidates }) {
  const rows = candidates.flatMap(({ arm, metrics }) => metrics.map((result) => ({ arm, ...result })));
  return tableSection("Differences", {
    definition: "change",
    aside: `against ${baseline}`,
    id: "results",
    caption: "Each candidate compared with the baseline in every metric",
    rows,
    columns: [
      column.text("metric", "Metric", { value: (row) => metricTitle(row.metric) }),
      ...(candidates.length > 1 ? [arm(arms, "Candidate")] : []),
      column.number("change", "Change", {
        value: (row) => row.estimate.value,
        show: (value, row) => changeText(row.metric, value),
      }),
      column.number("interval", "Interval", {
        value: interval,
        show: (value, row) => (row.estimate.value === null ? h("span", { class: "reason" }, value) : value),
        definition: "interval",
      }),
      column.number("p", "Exact p", { value: (row) => row.exact.p, show: significant, definition: "exact-p" }),
      column.number("robust", "Hodges–Lehmann", {
        value: (row) => row.robust.value,
        show: (value, row) =>
          value === null
            ? format.NOT_AVAILABLE
            : `${changeText(row.metric, value)}${row.robust.low === null ? "" : ` (${intervalText(row.metric, row.robust)})`}`,
        definition: "hodges-lehmann",
      }),
      column.number("detectable", "Detectable", {
        show: (value, row) => detectableText(row.metric, value),
        definition: "detectable-difference",
      }),
    ],
  });
}

/** The gates and their results; null without gates. */
export function gates({ gates: rows, arms, candidates }) {
  if (!rows.length) return null;
  const figure = (key, title) => column.number(key, title, { show: (value) => format.significant(value, 4) });
  return tableSection("Gates", {
    definition: "gate",
    id: "gates",
    rows,
    columns: [
      column.text("gate", "Gate", { code: true }),
      ...(candidates.length > 1 ? [arm(arms, "Candidate")] : []),
      column.text("outcome", "Outcome", { show: badge }),
      figure("value", "Value"),
      figure("low", "Low"),
      figure("high", "High"),
      ...(rows.some((row) => row.reason) ? [column.text("reason", "Why")] : []),
    ],
  });
}

/** The result for accuracy and the scatter of the runs, by candidate; null without both. */
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
  return tableSection("Scatter of the runs", {
    definition: "scatter",
    aside: "standard deviation of the candidate divided by that of the baseline",
    id: "scatter",
    rows,
    columns: [
      column.text("what", "Of"),
      ...(candidates.length > 1 ? [arm(arms, "Candidate")] : []),
      column.number("ratio", "Ratio", { value: (row) => row.ratio.value, show: format.ratio }),
      column.number("interval", "Interval", {
        value: (row) =>
          row.ratio.low === null
            ? (row.reason ?? null)
            : `${format.ratio(row.ratio.low)} to ${format.ratio(row.ratio.high)}`,
      }),
      column.number("p", "Brown–Forsythe p", { show: significant }),
      column.share("power", "Power"),
      column.number("runs_needed", "Runs needed", {
        show: (value, row) => value ?? (row.power === null ? format.NOT_AVAILABLE : "more than 200"),
      }),
    ],
  });
}

/** The runs of each arm: their number, those left out with the reasons, collapsed ones, and the accuracy goal. */
export function armsPart({ arms, candidates, accuracy_goal: goal }) {
  const collapse = new Map(candidates.map((candidate) => [candidate.arm, candidate.collapse_p]));
  return tableSection("Arms", {
    definition: "arm",
    id: "arms",
    rows: arms,
    columns: [
      arm(arms, "Arm", "name"),
      column.count("used", "Runs used"),
      column.text("left_out", "Left out", { value: (row) => counts(row.left_out) || "none" }),
      column.number("collapsed", "Collapsed", {
        value: (row) => row.collapsed.value,
        show: (value, { collapsed }) =>
          value === null || collapsed.low === null
            ? format.share(value)
            : `${format.share(value)} (${format.share(collapsed.low)} to ${format.share(collapsed.high)})`,
        definition: "collapsed",
      }),
      ...([...collapse.values()].some((p) => p !== null)
        ? [
            column.number("collapse_p", "Fisher p", {
              value: (row) => collapse.get(row.name) ?? null,
              show: significant,
            }),
          ]
        : []),
      ...(goal === null
        ? []
        : [
            column.count("reached_goal", `Reached ${goal}`),
            column.number("median_time_to_accuracy_s", "Median time to goal", {
              show: (value) => (value === null ? "fewer than half" : format.duration(value * 1e9)),
            }),
          ]),
    ],
  });
}

/** Mean, spread and quartiles of every metric and arm. */
export function summaries({ arms }) {
  const rows = Object.keys(METRICS).flatMap((metric) =>
    arms.filter((item) => item.metrics[metric]?.n).map((item) => ({ metric, arm: item.name, ...item.metrics[metric] })),
  );
  const figure = (key, title) => column.number(key, title, { show: (value, row) => metricValue(row.metric, value) });
  return tableSection("Metrics", {
    definition: "box-and-whisker",
    aside: "over the runs used; accuracy without collapsed runs",
    id: "metrics",
    caption: "Every metric of every arm",
    rows,
    columns: [
      column.text("metric", "Metric", { value: (row) => metricHead(row.metric) }),
      arm(arms, "Arm"),
      column.count("n", "Runs"),
      figure("mean", "Mean"),
      figure("sd", "SD"),
      figure("min", "Minimum"),
      figure("q1", "q1"),
      figure("median", "Median"),
      figure("q3", "q3"),
      figure("p90", "p90"),
      figure("max", "Maximum"),
    ],
  });
}

/** Every run in order of start, including those left out. */
export function runs({ arms, runs: rows, blocked }) {
  const known = Object.keys(METRICS).filter((metric) => rows.some((row) => Number.isFinite(row.values[metric])));
  return tableSection("Runs", {
    definition: "run-of-a-study",
    aside: "in order of start",
    id: "runs",
    caption: "Every run",
    rows,
    columns: [
      column.text("run_id", "Run", { code: true }),
      arm(arms, "Arm"),
      ...(blocked ? [column.count("block", "Block")] : []),
      column.text("status", "Counted", { value: status, show: (value) => (value === "yes" ? value : badge(value)) }),
      ...known.map((metric) =>
        column.number(metric, metricHead(metric), {
          value: (row) => row.values[metric],
          show: (value) => metricValue(metric, value),
        }),
      ),
    ],
  });
}

/** The allowed differences between the arms; null without differences. */
export function differences({ arms, baseline, candidates }) {
  const rows = candidates.flatMap((candidate) => candidate.differences.map((row) => ({ arm: candidate.arm, ...row })));
  if (rows.length === 0) return null;
  return section(
    "Differences between the arms",
    { definition: "fair-comparison", aside: "all of them declared" },
    differenceTable(rows, candidates.length > 1 ? [arm(arms, "Candidate")] : [], baseline, [
      column.text("allowed_by", "Allowed as"),
    ]),
  );
}

/** The facts in which arms differ although they must not. */
export function unfairRows({ rows, baseline }) {
  return section(
    "Differences beyond the setting being tested",
    { definition: "fair-comparison" },
    differenceTable(rows, [column.text("arm", "Candidate")], baseline, []),
  );
}

function differenceTable(rows, before, baseline, after) {
  return table({
    id: "differences",
    caption: "Differences between the arms",
    rows,
    columns: [
      column.text("fact", "Fact", { code: true }),
      ...before,
      column.text("baseline", baseline, { value: (row) => row.baseline.join(", ") }),
      column.text("candidate", "Candidate's value", { value: (row) => row.candidate.join(", ") }),
      ...after,
    ],
  });
}

// The reason why a change is not known.
function interval({ metric, estimate, deterministic }) {
  if (estimate.value === null) return estimate.reason ?? format.NOT_AVAILABLE;
  return deterministic && estimate.low === null ? "the same in every run" : intervalText(metric, estimate);
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
  return format.significant(value, 3);
}

function arm(arms, title, key = "arm") {
  return column.text(key, title, { show: (name) => armName(arms, name) });
}
