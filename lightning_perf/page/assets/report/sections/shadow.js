// Shadow steps: the drift of a mixed-precision training from FP32 over the run.

import { chart, ink } from "../../components/chart.js";
import { columns } from "../../components/parts.js";
import { h } from "../../core/dom.js";

/** The drift of the gradients and of the loss over the run. */
export function shadowCharts(drift) {
  return columns(
    series(drift, "Drift of the gradient: 1 − cosine", [
      ["1 − cosine", "input", ({ cosine }) => (cosine === null ? null : Math.max(1 - cosine, 1e-12))],
    ]),
    series(drift, "Loss of the same batches", [
      ["run", "input", ({ loss }) => loss],
      ["fp32", "host_compute", ({ fp32_loss }) => fp32_loss],
    ]),
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
