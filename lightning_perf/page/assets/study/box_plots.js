// Box plots with every run: times, and accuracy with collapsed runs in their own panel.

import { chart, chartText, ink } from "../components/chart.js";
import { section } from "../components/parts.js";
import { largest } from "../core/numbers.js";
import { armAxis, looks, offset } from "./arms.js";
import { axisScale, metricTitle, metricValue } from "./metrics.js";

const TIMES = ["step_time", "train_time"];
const FEWEST_FOR_BOX = 3; // with fewer runs, only the points are drawn
const LOST_SHARE = 0.24; // width of the panel of collapsed runs, if other runs learned

/** The step time and the training time of every run, by arm. */
export function timeBoxes(comparison) {
  return TIMES.filter((name) => comparison.arms.some((arm) => arm.metrics[name]?.n)).map((name) => {
    const { factor, unit } = axisScale(name, largest(comparison.arms.map((arm) => arm.metrics[name].max ?? 0)));
    const draw = () => ({
      data: comparison.arms.flatMap((arm) => row(comparison, arm, name, factor, () => true)),
      layout: {
        showlegend: false,
        boxmode: "overlay",
        xaxis: { title: `${metricTitle(name)} of a run (${unit}), lower is better`, measured: true },
        yaxis: armAxis(comparison.arms),
      },
    });
    return section(
      `${capital(metricTitle(name))} of every run`,
      { definition: "box-and-whisker" },
      chart({
        title: `${metricTitle(name)} of every run by arm. The tables have the figures.`,
        draw,
        height: height(comparison),
      }),
    );
  });
}

/** The accuracy of every run, by arm; null if the runs have no accuracy. */
export function accuracyBoxes(comparison) {
  const used = comparison.runs.filter((run) => run.left_out === null && run.values.accuracy !== null);
  if (!comparison.accuracy_metric || used.length === 0) return null;
  const lost = used.filter((run) => run.collapsed);
  const learned = lost.length < used.length;
  const limit = comparison.collapse_limit;
  const narrow = innerWidth < 700;
  const notes = comparison.arms.map((arm) => {
    const count = lost.filter((run) => run.arm === arm.name).length;
    return count ? `${count} of ${arm.used} collapsed` : null;
  });
  const draw = () => ({
    data: comparison.arms.flatMap((arm) => [
      ...row(comparison, arm, "accuracy", 100, (run) => !run.collapsed),
      ...(lost.length
        ? row(comparison, arm, "accuracy", 100, (run) => run.collapsed, {
            box: false,
            settings: { xaxis: learned ? "x2" : "x" },
            marker: { symbol: "x", size: 10, color: ink("high"), line: { width: 0 } },
          })
        : []),
    ]),
    layout: {
      showlegend: false,
      boxmode: "overlay",
      yaxis: { ...armAxis(comparison.arms, notes), anchor: "free", position: 0 },
      xaxis: {
        title: `${chartText(comparison.accuracy_metric)}${narrow ? "" : " after the last epoch"} (%)`,
        measured: true,
        domain: lost.length && learned ? [LOST_SHARE + (narrow ? 0.14 : 0.06), 1] : [0, 1],
      },
      ...(lost.length && learned
        ? { xaxis2: { title: "collapsed (%)", domain: [0, LOST_SHARE], anchor: "y", nticks: 3 }, ...lostPanel() }
        : {}),
    },
  });
  return section(
    "Accuracy of every run",
    {
      definition: "collapsed",
      aside: limit > 0 ? `below ${(100 * limit).toFixed(1)} % a run counts as collapsed` : null,
    },
    chart({ title: "Accuracy of every run by arm, with collapsed runs shown separately.", draw, height: height(comparison) }),
  );
}

function lostPanel() {
  const panel = { type: "rect", xref: "paper", yref: "paper", x0: 0, x1: LOST_SHARE, y0: 0, y1: 1, layer: "below" };
  return { shapes: [{ ...panel, fillcolor: ink("high-soft"), line: { width: 0 } }] };
}

// One arm: the box from its summary, and a point for each run, from top to bottom in order of start.
function row(comparison, arm, metric, factor, belongs, { box = true, settings = {}, marker = {} } = {}) {
  const look = looks(comparison.arms).get(arm.name);
  const summary = arm.metrics[metric];
  const runs = comparison.runs.filter(
    (run) => run.arm === arm.name && run.left_out === null && run.values[metric] !== null && belongs(run),
  );
  const points = {
    type: "scatter",
    mode: "markers",
    x: runs.map((run) => factor * run.values[metric]),
    y: runs.map((_, i) => look.row + offset(i, runs.length)),
    customdata: runs.map((run) => [chartText(run.run_id), run.block ?? "–", metricValue(metric, run.values[metric])]),
    hovertemplate: "%{customdata[2]}<br>%{customdata[0]}<br>block %{customdata[1]}<extra></extra>",
    marker: { color: look.color, symbol: look.marker, size: 8, line: { width: 1, color: ink("panel") }, ...marker },
    ...settings,
  };
  if (!box || summary.n < FEWEST_FOR_BOX) return [points];
  const quartiles = {
    type: "box",
    orientation: "h",
    y: [look.row],
    q1: [factor * summary.q1],
    median: [factor * summary.median],
    q3: [factor * summary.q3],
    lowerfence: [factor * summary.min],
    upperfence: [factor * summary.max],
    width: 0.56,
    line: { color: look.color, width: 1.5 },
    fillcolor: `${look.color}22`,
    hoverinfo: "skip",
  };
  return [quartiles, points];
}

function height(comparison) {
  return 76 + 74 * comparison.arms.length;
}

function capital(text) {
  return text[0].toUpperCase() + text.slice(1);
}
