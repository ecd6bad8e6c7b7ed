// Charts of the precision view.

import { chart, chartText, ink } from "../chart.js";
import { h } from "../dom.js";

/** The loss scale over the steps, with its overflows. */
export function scaleChart(history) {
  const { events } = history;
  const overflows = events.filter((event) => event.kind === "overflow");
  const draw = () => ({
    data: [
      {
        type: "scatter",
        mode: "lines",
        name: "loss scale",
        x: events.map((event) => event.step),
        y: events.map((event) => event.scale),
        line: { shape: "hv", width: 1.6, color: ink("accent") },
        hovertemplate: "%{y:,.0f}<extra>step %{x}</extra>",
      },
      {
        type: "scatter",
        mode: "markers",
        name: "overflow, step skipped",
        x: overflows.map((event) => event.step),
        y: overflows.map((event) => event.scale),
        marker: { color: ink("high"), size: 8, symbol: "x" },
        hovertemplate: "overflow, scale now %{y:,.0f}<extra>step %{x}</extra>",
      },
    ],
    layout: {
      xaxis: { title: "step" },
      yaxis: { title: "loss scale", type: "log", dtick: Math.log10(2) * 2, tickformat: ",.0f" },
      showlegend: overflows.length > 0,
    },
  });
  return chart({ title: `Loss scale over the steps; ${overflows.length} overflows`, draw, height: 260 });
}

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
      line(chartText(drift.precision), drift.mixed_losses, "input"),
      line("fp32", drift.fp32_losses, "host_compute"),
    ],
    layout: { xaxis: { title: "batch", dtick: drift.mixed_losses.length > 16 ? null : 1 }, yaxis: { title: "loss" } },
  });
  return h(
    "div",
    {},
    h("h3", {}, "Loss of the same batches"),
    chart({ title: "Losses in mixed precision and in FP32", draw, height: 260 }),
  );
}

/** How far each layer's output is from FP32. */
export function driftChart(drift) {
  const draw = () => ({
    data: [
      {
        type: "bar",
        x: drift.layers.map((layer) => chartText(layer.name)),
        y: drift.layers.map((layer) => layer.relative_error),
        marker: { color: ink("input") },
        hovertemplate: "%{y:.2%}<extra>%{x}</extra>",
      },
    ],
    layout: {
      xaxis: {
        title: "layers, in the order of computing",
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
