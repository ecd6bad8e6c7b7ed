// Charts of the runs within their blocks, and in order of start.

import { chart, chartText, ink } from "../components/chart.js";
import { section } from "../components/parts.js";
import { largest } from "../core/numbers.js";
import * as format from "../text/format.js";
import { armAxis, armLegend, looks } from "./arms.js";
import { axisScale, metricTitle, metricValue, signedPercent } from "./metrics.js";

const METRIC = "step_time";
const DRIFT_POINTS = 41;

/** One line per block through the step times of its runs; null without blocks or without step times. */
export function blockLines(comparison) {
  const blocks = new Map();
  for (const run of comparison.runs) {
    if (run.left_out !== null || run.block === null || run.values[METRIC] === null) continue;
    blocks.set(run.block, [...(blocks.get(run.block) ?? []), run]);
  }
  if (!comparison.blocked || blocks.size === 0) return null;
  const most = largest([...blocks.values()].flat().map((run) => run.values[METRIC]));
  const { factor, unit } = axisScale(METRIC, most);
  const draw = () => {
    const of = looks(comparison.arms);
    return {
      data: [...blocks]
        .sort(([a], [b]) => a - b)
        .map(([block, runs], i) => {
          const row = runs.toSorted((a, b) => of.get(a.arm).row - of.get(b.arm).row);
          return {
            type: "scatter",
            mode: "lines+markers",
            x: row.map((run) => factor * run.values[METRIC]),
            y: row.map((run) => of.get(run.arm).row),
            customdata: row.map((run) => [chartText(run.run_id), metricValue(METRIC, run.values[METRIC])]),
            hovertemplate: `block ${block}: %{customdata[1]}<br>%{customdata[0]}<extra></extra>`,
            line: { width: 1.5, color: ink("ink-soft") },
            opacity: 1 - (0.6 * i) / Math.max(1, blocks.size - 1),
            marker: {
              color: row.map((run) => of.get(run.arm).color),
              symbol: row.map((run) => of.get(run.arm).marker),
              size: 8,
              line: { width: 1, color: ink("panel") },
            },
          };
        }),
      layout: {
        showlegend: false,
        xaxis: { title: `${metricTitle(METRIC)} (${unit}), lower is better`, measured: true },
        yaxis: armAxis(comparison.arms),
      },
    };
  };
  return section(
    "Step time within each block",
    { definition: "block", aside: "a line joins the runs of one block, and later blocks are fainter" },
    chart({
      title: "Step time within each block. Parallel lines mean a difference, and crossing lines mean noise.",
      draw,
      height: 90 + 80 * comparison.arms.length,
    }),
  );
}

/** Each run's step time against the mean of its arm, in order of start; null if no arm has two runs with step times. */
export function orderOfRuns(comparison) {
  const used = comparison.runs.filter((run) => run.left_out === null);
  const { residuals, change, p } = comparison.drift;
  if (comparison.arms.every((arm) => arm.metrics[METRIC].n < 2)) return null;
  const draw = () => ({
    data: [
      ...[...looks(comparison.arms)].map(([name, look]) => {
        const rows = used
          .map((run, i) => ({ run, i }))
          .filter(({ run, i }) => run.arm === name && residuals[i] !== null);
        return {
          type: "scatter",
          mode: "markers",
          x: rows.map(({ i }) => i + 1),
          y: rows.map(({ i }) => 100 * residuals[i]),
          customdata: rows.map(({ run, i }) => [
            chartText(run.run_id),
            run.block ?? "–",
            signedPercent(1 + residuals[i]),
          ]),
          hovertemplate: "%{customdata[2]}<br>%{customdata[0]}<br>block %{customdata[1]}<extra></extra>",
          marker: { color: look.color, symbol: look.marker, size: 9, line: { width: 1, color: ink("panel") } },
        };
      }),
      ...drift(change, used.length),
    ],
    layout: {
      showlegend: false,
      xaxis: { title: "runs in order of start", range: [0.4, used.length + 0.6], dtick: used.length > 16 ? null : 1 },
      yaxis: { title: "% from the arm's mean", zeroline: true, zerolinecolor: ink("ink-soft") },
      shapes: comparison.blocked ? bands(used) : [],
    },
  });
  return section(
    "Step time in the order of runs",
    { definition: "drift", aside: driftWords(change, p) },
    armLegend(comparison.arms),
    chart({ title: "Each run's step time against the mean of its arm, in order of start.", draw, height: 300 }),
  );
}

/** The drift as text. */
function driftWords(change, p) {
  if (change.value === null) return `drift: ${change.reason}`;
  const size = `drift from the first run to the last: ${signedPercent(1 + change.value)}`;
  if (change.low === null || change.high === null) return `${size} (${change.reason})`;
  const ends = `${signedPercent(1 + change.low)} to ${signedPercent(1 + change.high)}`;
  return `${size} (${ends}${p === null ? "" : `, p = ${format.significant(p, 2)}`})`;
}

// The straight line through the logarithms. The document's drift is its slope.
function drift(change, count) {
  if (change.value === null || change.value <= -1 || count < 2) return [];
  const slope = Math.log1p(change.value) / (count - 1);
  const x = Array.from({ length: DRIFT_POINTS }, (_, i) => 1 + ((count - 1) * i) / (DRIFT_POINTS - 1));
  const y = x.map((place) => 100 * Math.expm1(slope * (place - (count + 1) / 2)));
  const line = { dash: "dash", width: 1.5, color: ink("ink-soft") };
  return [{ type: "scatter", mode: "lines", x, y, hoverinfo: "skip", line }];
}

// A band behind the runs of every other block. Blocks that ran side by side have several bands.
function bands(used) {
  const order = new Map([...new Set(used.map((run) => run.block))].map((block, i) => [block, i]));
  return used
    .map((run, i) => ({ run, i }))
    .filter(({ run }) => order.get(run.block) % 2)
    .map(({ i }) => ({
      type: "rect",
      x0: i + 0.5,
      x1: i + 1.5,
      yref: "paper",
      y0: 0,
      y1: 1,
      layer: "below",
      fillcolor: ink("sunken"),
      line: { width: 0 },
    }));
}
