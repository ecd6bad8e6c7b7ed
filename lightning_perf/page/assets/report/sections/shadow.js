// Shadow steps: the drift of a mixed-precision training from FP32 over the run, and by layer.

import { chart, ink } from "../../components/chart.js";
import * as column from "../../components/column.js";
import { columns, notice, section } from "../../components/parts.js";
import { table } from "../../components/table.js";
import { h } from "../../core/dom.js";
import * as format from "../../text/format.js";

const LOW_COSINE = 0.9;

/** The drift from FP32. */
export function shadow(drift) {
  const cost = drift.cost_share === null ? "" : `, ${format.share(drift.cost_share)} of the fit's time`;
  const low = drift.layers.some((layer) => layer.lowest_cosine !== null && layer.lowest_cosine < LOW_COSINE);
  return section(
    "Shadow steps in FP32",
    { definition: "shadow-step", aside: `${format.countOf(drift.points.length, "shadow step")}${cost}` },
    notice(drift.summary.join(" "), low ? "high" : "good"),
    columns(
      series(drift, "Drift of the gradient: 1 − cosine", [
        ["1 − cosine", "input", ({ cosine }) => (cosine === null ? null : Math.max(1 - cosine, 1e-12))],
      ]),
      series(drift, "Loss of the same batches", [
        ["run", "input", ({ loss }) => loss],
        ["fp32", "host_compute", ({ fp32_loss }) => fp32_loss],
      ]),
    ),
    table({
      id: "shadow",
      caption: "Gradients of each layer next to FP32",
      rows: drift.layers,
      sort: "lowest_cosine",
      descending: false,
      columns: [
        column.text("name", "Layer", { code: true, csv: "layer" }),
        column.number("lowest_cosine", "Lowest cosine", { definition: "gradient-cosine", show: digits(5) }),
        column.count("lowest_step", "At step"),
        column.number("mean_cosine", "Mean cosine", { definition: "gradient-cosine", show: digits(5) }),
        column.number("lowest_norm_ratio", "Lowest norm ratio", { definition: "norm-ratio", show: digits(4) }),
        column.number("highest_norm_ratio", "Highest norm ratio", { definition: "norm-ratio", show: digits(4) }),
        column.count("unknown", "Unknown"),
      ],
    }),
  );
}

function series(drift, title, lines) {
  const draw = () => ({
    data: lines.map(([name, color, value]) => ({
      type: "scatter",
      mode: "lines+markers",
      name,
      x: drift.points.map(({ step }) => step),
      y: drift.points.map(value),
      line: { width: 1.5, color: ink(color) },
      marker: { size: 4 },
      hovertemplate: `%{y:.4g} ${name}<extra>step %{x}</extra>`,
    })),
    layout: { xaxis: { title: "step" }, yaxis: lines.length > 1 ? { title: "loss" } : { type: "log" } },
  });
  return h("div", {}, h("h3", {}, title), chart({ title, draw, height: 260 }));
}

function digits(number) {
  return (value) => (value === null ? format.NOT_AVAILABLE : value.toFixed(number));
}
