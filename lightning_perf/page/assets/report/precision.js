// The view "Precision": loss scale, overflows, underflow by layer, drift from FP32, and the cost of casts.

import { part } from "../components/blocks.js";
import { columns, missing } from "../components/parts.js";
import { snrChart } from "./sections/forecast.js";
import { scaleChart } from "./sections/loss_scale.js";
import { driftChart, lossChart } from "./sections/precision_drift.js";
import { shadowCharts } from "./sections/shadow.js";

export const precision = { id: "precision", title: "Precision", kinds: ["run", "trace"], missing: reason, render };

const NO_RECORD =
  "This run has no record of its precision, because a trace does not contain the loss scale or gradients. Train with " +
  "`PerfCallback(precision=…)` and analyze the run's folder to see the loss scale, overflows and underflow by layer.";

function reason({ report, rank }) {
  return report.precision || report.forecast || report.shadow || report.fp8 || rank?.autocast?.count || rank?.amp_gain ? null : NO_RECORD;
}

function render({ report, rank }) {
  const { precision: found, forecast, shadow, fp8 } = report;
  const chartOf = (data, draw) => ({ before: data ? draw(data) : null });
  return [
    found || forecast || shadow || fp8 ? null : missing(NO_RECORD),
    ["diagnosis", "mistakes", "setting"].map((name) => part(report, name)),
    part(report, "loss_scale", chartOf(found?.loss_scale, scaleChart)),
    part(report, "underflow"),
    part(report, "numerics", chartOf(found?.numerics, driftCharts)),
    part(report, "fp8"),
    part(report, "shadow", chartOf(shadow, shadowCharts)),
    part(report, "forecast", chartOf(forecast, snrChart)),
    ["gain", "casts"].map((name) => part(report, `${name}.${report.ranks.indexOf(rank)}`)),
  ];
}

function driftCharts(drift) {
  return columns(lossChart(drift), drift.layers.length ? driftChart(drift) : null);
}
