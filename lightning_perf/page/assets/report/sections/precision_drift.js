// Drift of mixed precision from FP32: charts of the losses and of the layers' outputs.

import { chart, chartText, ink } from "../../components/chart.js";
import { h } from "../../core/dom.js";

/** The losses of a mixed run and of its FP32 replay. */
export function lossChart(drift) {
  const line = (name, losses, color) => ({
    type: "scatter",
    mode: "lines+markers",
    name,
    y: losses,
    x: losses.map((_, i) => i + 1),
    line: { width: 1.5, color: ink(color) },
    marker: { size: 4 },
    hovertemplate: `%{y:.4g} ${name}<extra>batch %{x}</extra>`,
  });
  const draw = () => ({
    data: [
      line(chartText(drift.precision), drift.mixed_losses, "accent"),
      line("fp32", drift.fp32_losses, "ink-soft"),
    ],
    layout: { xaxis: { title: "batch", dtick: drift.mixed_losses.length > 16 ? null : 1 }, yaxis: { title: "loss", measured: true } },
  });
  return h(
    "div",
    {},
    h("h3", {}, "Loss of the same batches"),
    chart({ title: "Losses in mixed precision and in FP32", draw, height: 260 }),
  );
}

/** The error of each layer's output against FP32. */
export function driftChart(drift) {
  const draw = () => ({
    data: [
      {
        type: "bar",
        x: drift.layers.map((layer) => chartText(layer.name)),
        y: drift.layers.map((layer) => layer.relative_error),
        marker: { color: ink("accent") },
        hovertemplate: "%{y:.2%}<extra>%{x}</extra>",
      },
    ],
    layout: {
      xaxis: {
        title: "layers in the order of computation",
        showticklabels: drift.layers.length <= 24,
        type: "category",
      },
      yaxis: { tickformat: ".1%" },
      showlegend: false,
    },
  });
  return h(
    "div",
    {},
    h("h3", {}, "Outputs of layers: relative error against FP32"),
    chart({ title: "Relative error of layers' outputs", draw, height: 260 }),
  );
}
