// The forecast of number formats: a chart of signal-to-noise ratios.

import { chart, chartText, ink } from "../../components/chart.js";

const COLORS = {
  bf16: "idle",
  "fp8-delayed": "communication",
  fp8: "device_compute",
  mxfp8: "host_compute",
  nvfp4: "input",
};

/** How each recipe would round each layer. */
export function snrChart(found) {
  const names = found.layers.map((layer) => chartText(layer.name));
  const shown = found.recipes.filter(({ recipe }) => recipe in COLORS);
  const draw = () => ({
    data: shown.map(({ recipe, title }) => ({
      type: "scatter",
      mode: "markers",
      name: chartText(title),
      x: names,
      y: found.layers.map((layer) => verdict(layer, recipe).snr_db),
      marker: { color: ink(COLORS[recipe]), size: 6 },
      hovertemplate: "%{y:.1f} dB<extra>%{x}</extra>",
    })),
    layout: {
      xaxis: { title: "layers in the order of the model", showticklabels: names.length <= 24, type: "category" },
      yaxis: { title: "signal-to-noise ratio, dB" },
      shapes: [
        {
          type: "line",
          xref: "paper",
          x0: 0,
          x1: 1,
          y0: found.safe_db,
          y1: found.safe_db,
          line: { width: 1, dash: "dash", color: ink("ink-soft") },
        },
      ],
    },
  });
  return chart({ title: "Signal-to-noise ratio of each layer by recipe", draw, height: 300 });
}

function verdict(layer, recipe) {
  return layer.verdicts.find((each) => each.recipe === recipe);
}
