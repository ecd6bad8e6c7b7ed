// The view "Precision": loss scale, overflows, underflow by layer, drift from FP32, and the cost of casts.

import { part } from "../components/blocks.js";
import * as column from "../components/column.js";
import { columns, missing, section, tiles } from "../components/parts.js";
import { table } from "../components/table.js";
import { h } from "../core/dom.js";
import * as format from "../text/format.js";
import { arithmeticLabel, per } from "../text/labels.js";
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
    rank?.amp_gain ? gain(rank) : null,
    rank?.autocast ? casts(rank) : null,
  ];
}

function driftCharts(drift) {
  return columns(lossChart(drift), drift.layers.length ? driftChart(drift) : null);
}

const PARTS = {
  products: "products and convolutions without Tensor Cores",
  "products on Tensor Cores": "products and convolutions in TF32",
  following: "kernels that read their results",
  fixed: "unchanged kernels",
  "in 16 bits": "kernels in 16 bits or fewer already",
};

function gain(rank) {
  const { amp_gain: found } = rank;
  const steps = Math.max(found.steps, 1);
  return section(
    "Predicted gain of mixed precision",
    {
      definition: "gain-of-mixed-precision",
      aside: found.device
        ? `by the peak rates of ${found.device}`
        : "by general factors, because the device's peak rates are not known",
    },
    h("p", {}, gainText(found, rank)),
    table({
      id: "gain",
      caption: "Parts of the compute time, now and in mixed precision",
      rows: found.parts,
      columns: [
        column.text("name", "Part", { csv: "part", value: ({ name }) => PARTS[name] ?? name }),
        column.perStep(steps, column.count("kernels", "Kernels")),
        column.perStep(steps, column.time("time_ns", "Now")),
        column.perStep(steps, column.time("fastest_ns", "Mixed, at best")),
        column.perStep(steps, column.time("slowest_ns", "Mixed, at worst")),
      ],
    }),
  );
}

function gainText(found, rank) {
  const [least, most, step] = [found.least_saving_ns, found.most_saving_ns, found.step_ns].map(format.duration);
  if (found.most_saving_ns <= 0) return `No saving of ${step} ${per(rank)}.`;
  const casts = `casts of the weights cost ${format.duration(found.casts_ns)}`;
  return `${found.least_saving_ns > 0 ? `${least} to ${most}` : `Up to ${most}`} of ${step} ${per(rank)}; ${casts}.`;
}

function casts(rank) {
  const { autocast: found } = rank;
  const steps = Math.max(found.steps, 1);
  const title = "Casts between floating-point types";
  const why = found.missing ? `Not known: ${found.missing}.` : found.count ? null : "No casts.";
  if (why) return section(title, { definition: "autocast-tax" }, h("p", { class: "aside" }, why));
  return section(
    title,
    { definition: "autocast-tax", aside: per(rank) },
    tiles([
      {
        label: "Casts",
        value: format.count(found.count / steps),
        note: `${format.duration(found.time_ns / steps)}, ${format.share(found.share)} of ${found.on_device ? "compute" : "the step"}`,
        definition: "autocast-tax",
      },
      {
        label: "Weights cast again",
        value: format.count(found.repeated_weight_casts / steps),
        note: format.duration(found.repeated_weight_ns / steps),
        definition: "repeated-weight-casts",
      },
      {
        label: "Round trips to FP32",
        value: format.count(found.round_trips / steps),
        note: format.duration(found.round_trip_ns / steps),
        definition: "round-trips",
      },
    ]),
    table({
      id: "casts",
      caption: "Casts by types",
      rows: found.casts,
      columns: [
        column.text("types", "From – to", {
          value: (row) => `${arithmeticLabel(row.source)} – ${arithmeticLabel(row.target)}`,
        }),
        column.perStep(steps, column.count("count", "Casts", { csv: "casts" })),
        column.perStep(steps, column.time("time_ns", "Time")),
      ],
    }),
  );
}
