// The forecast of number formats: advice, a chart of signal-to-noise ratios, and tables of recipes, layers and tensors.

import { chart, chartText, ink } from "../../components/chart.js";
import * as column from "../../components/column.js";
import { section } from "../../components/parts.js";
import { table } from "../../components/table.js";
import { h } from "../../core/dom.js";
import * as format from "../../text/format.js";

const COLORS = {
  bf16: "idle",
  "fp8-delayed": "communication",
  fp8: "device_compute",
  mxfp8: "host_compute",
  nvfp4: "input",
};

/** How number formats would round each layer. */
export function forecast(found) {
  const cost = found.cost_share === null ? "" : `, ${format.share(found.cost_share)} of the fit's time`;
  return section(
    "Forecast of number formats",
    { definition: "safe-layer", aside: `${format.countOf(found.samples, "sampled step")}${cost}` },
    h("p", { class: "action" }, found.advice.join(" ")),
    recipes(found),
    snrChart(found),
    layers(found),
    tensors(found),
  );
}

function recipes(found) {
  return table({
    id: "recipes",
    caption: "Layers that each recipe could be used for",
    rows: found.recipes,
    columns: [
      column.text("title", "Recipe", { csv: "recipe" }),
      column.count("safe", "Safe layers", { definition: "safe-layer" }),
      column.count("usable", "With fitting sizes"),
      column.text("keep_out", "Keep out", { code: true, value: (row) => row.keep_out.join(", ") }),
      column.text("devices", "Saves of the products' time", {
        csv: "saving",
        value: (row) => row.devices.map(saving).join("; "),
      }),
    ],
  });
}

function saving({ device, least, most }) {
  return `${device}: ${Math.round(100 * least)} to ${Math.round(100 * most)} %`;
}

function snrChart(found) {
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
  return h(
    "div",
    {},
    h("h3", {}, "Lowest signal-to-noise ratio of each layer's matrix products"),
    h("p", { class: "aside" }, `Layers above the dashed line, ${found.safe_db} dB, are safe.`),
    chart({ title: "Signal-to-noise ratio of each layer by recipe", draw, height: 300 }),
  );
}

function layers(found) {
  return table({
    id: "forecast",
    caption: "Signal-to-noise ratio of each layer, in dB",
    rows: found.layers,
    sort: "fp8",
    descending: false,
    columns: [
      column.text("name", "Layer", { code: true, csv: "layer" }),
      ...found.recipes.map(({ recipe, title }) =>
        column.number(recipe, title, {
          csv: `${recipe}_db`,
          definition: "signal-to-noise-ratio",
          value: (row) => verdict(row, recipe).snr_db,
          show: (value) => (value === null ? format.NOT_AVAILABLE : value.toFixed(1)),
        }),
      ),
      column.text("product", "Worst product in FP8", { value: (row) => verdict(row, "fp8")?.product ?? "" }),
      column.text("sizes", "Sizes that do not fit FP8", {
        value: (row) => verdict(row, "fp8")?.misaligned.join(", ") ?? "",
      }),
      column.count("rows", "Rows"),
      column.count("inputs", "Inputs"),
      column.count("outputs", "Outputs"),
    ],
  });
}

function tensors(found) {
  const rows = found.layers.flatMap((layer) =>
    layer.tensors.flatMap((tensor) =>
      tensor.formats.map((each) => ({ layer: layer.name, tensor: tensor.tensor, ...each })),
    ),
  );
  return table({
    id: "rounding",
    caption: "Rounding of weights, activations and gradients",
    rows,
    sort: "flushed",
    columns: [
      column.text("layer", "Layer", { code: true }),
      column.text("tensor", "Tensor"),
      column.text("format", "Format"),
      column.share("flushed", "Flushed to zero", { definition: "flushed-share", bar: (row) => row.flushed }),
      column.share("saturated", "Saturated", { definition: "saturated-share", bar: (row) => row.saturated }),
      column.share("coarse", "Changed by over 12.5 %", { definition: "coarse-share", bar: (row) => row.coarse }),
    ],
  });
}

function verdict(layer, recipe) {
  return layer.verdicts.find((each) => each.recipe === recipe);
}
