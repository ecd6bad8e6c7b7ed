// The view "Layers": the cost of one forward pass of the original by layer, and the shortest time that it can take.

import { part } from "../components/blocks.js";
import { chart, chartText, ink } from "../components/chart.js";
import { legend, notice, section, tiles, unlessMissing } from "../components/parts.js";
import * as format from "../text/format.js";
import { latencyOf } from "./limits.js";

export const layers = { id: "layers", title: "Layers", kinds: ["inference"], ...unlessMissing(reason, render) };

const MOST_BARS = 15;
const BAR_PX = 24;
const LIMITS = { compute: "bound_by_compute", memory: "bound_by_memory" };

function reason({ report }) {
  return report.count ? null : "The operations of the original could not be counted.";
}

function render(context) {
  const { count, roofline, rows, cells } = context.report;
  return [summary(count, roofline, rows[0], cells[0]), roofline && least(roofline), part(context.report, "layers")];
}

function summary(count, roofline, original, cell) {
  const latency = cell && original ? latencyOf(original, cell) : null;
  const lacking = count.layers.filter((layer) => layer.uncounted.length);
  return section(
    "One forward pass",
    { definition: "macs", aside: `one input of ${count.input_shape.slice(1).join("×")}` },
    tiles([
      { label: "Parameters", text: format.count(count.parameters), note: unused(count) },
      { label: "In memory", text: format.bytes(count.size_bytes) },
      { label: "MACs", text: macs(count.macs), definition: "macs" },
      { label: "FLOPs", text: format.flops(count.flops), definition: "macs" },
      { label: "Bytes moved", text: format.bytes(count.bytes_moved), definition: "bytes-moved" },
      { label: "FLOPs per byte", text: digits(count.arithmetic_intensity), definition: "bytes-moved" },
      { label: "Least time", text: time(roofline?.bound_ms), definition: "least-time" },
      { label: "Layer by layer", text: time(roofline?.layer_by_layer_ms), note: "at least", definition: "least-time" },
      {
        label: "Time of the original",
        text: time(latency?.p50_ms),
        note: latency && roofline ? `${format.ratio(latency.p50_ms / roofline.bound_ms)} the least time` : null,
        definition: "latency",
      },
    ]),
    lacking.length
      ? notice(`FLOPs are too low, because no formula is known for operators in ${format.countOf(lacking.length, "layer")}.`)
      : null,
  );
}

function least({ layers: all, peaks }) {
  const shown = all
    .filter((layer) => layer.bound_ms > 0)
    .toSorted((a, b) => b.bound_ms - a.bound_ms)
    .slice(0, MOST_BARS);
  if (shown.length === 0) return null;
  const draw = () => ({
    data: [
      {
        type: "bar",
        orientation: "h",
        y: shown.map((_, i) => i),
        x: shown.map((layer) => layer.bound_ms * 1000),
        customdata: shown.map((layer) => [
          chartText(`${layer.path || "(the model)"}, ${layer.kind}`),
          time(layer.compute_ms),
          time(layer.memory_ms),
        ]),
        hovertemplate: "%{customdata[0]}<br>compute %{customdata[1]}, memory %{customdata[2]}<extra></extra>",
        marker: { color: shown.map((layer) => ink(LIMITS[layer.limit] ?? "unknown")) },
      },
    ],
    layout: {
      showlegend: false,
      xaxis: { title: "least time, µs" },
      yaxis: {
        autorange: "reversed",
        tickvals: shown.map((_, i) => i),
        ticktext: shown.map((layer) => chartText(tail(layer.path || "(the model)"))),
        showgrid: false,
      },
    },
  });
  const device = [
    peaks.device,
    peaks.dtype,
    `${format.flopRate(peaks.flops_per_s)}${
      peaks.convolution_flops_per_s ? ` (convolutions ${format.flopRate(peaks.convolution_flops_per_s)})` : ""
    } and ${format.bandwidth(peaks.bandwidth_bytes_per_s)}`,
    peaks.source,
  ];
  return section(
    "Least time by layer",
    { definition: "least-time", aside: device.join(" · ") },
    legend([
      { label: "bound by arithmetic", color: LIMITS.compute },
      { label: "bound by memory", color: LIMITS.memory },
    ]),
    chart({
      title: "The layers with the longest least time. The table has all of them.",
      draw,
      height: 64 + BAR_PX * shown.length,
    }),
  );
}

function unused(count) {
  return count.unused_parameters ? `${format.count(count.unused_parameters)} unused` : null;
}

function macs(number) {
  return format.flops(number).replace("FLOPs", "MACs");
}

function time(value_ms) {
  return format.duration(Number.isFinite(value_ms) ? value_ms * 1e6 : null);
}

function digits(value) {
  return Number.isFinite(value) ? format.digits(value) : format.NOT_AVAILABLE;
}

// Paths of layers differ at their ends.
function tail(path) {
  const room = innerWidth < 700 ? 16 : 40;
  return path.length <= room ? path : `…${path.slice(-room + 1)}`;
}
