// The history of the loss scale.

import { chart, ink } from "../../components/chart.js";
import * as format from "../../text/format.js";

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
  return chart({ title: `Loss scale over the steps, with ${format.countOf(overflows.length, "overflow")}`, draw, height: 260 });
}
