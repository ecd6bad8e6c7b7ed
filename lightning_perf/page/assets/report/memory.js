// The view "Memory": memory over time, and its contents at the peak.

import { part } from "../components/blocks.js";
import { chart, ink, peakMark } from "../components/chart.js";
import * as column from "../components/column.js";
import { term } from "../components/definitions.js";
import { section, stack, tiles, unlessMissing } from "../components/parts.js";
import { table } from "../components/table.js";
import { h } from "../core/dom.js";
import * as format from "../text/format.js";
import { label } from "../text/labels.js";

export const memory = { id: "memory", title: "Memory", kinds: ["run", "trace"], ...unlessMissing(reason, render) };

function reason({ report, rank }) {
  if (report.out_of_memory?.length) return null;
  if (!rank) return "No step was profiled, so memory was not recorded.";
  if (!rank.memory) return "This recording has no allocator events. Record with `profile_memory=True`.";
  return null;
}

function render(context) {
  const { report, rank } = context;
  const batch = (device) => part(report, `batch_${device}.${report.ranks.indexOf(rank)}`);
  return [
    part(report, "out_of_memory"),
    (rank?.memory?.devices ?? []).map((device, i) => one(device, rank, batch(i))),
  ];
}

const RECORDED_ONLY =
  "These figures count from the start of the recording. They do not include memory that was allocated before.";
const LISTED_ONLY =
  "These figures do not include memory that was allocated before the recording, except for parameters, gradients and optimizer state.";

function one(device, rank, batch) {
  const name = device.device === null ? "Host" : `Device ${device.device}`;
  const bound = device.absolute ? null : "at least";
  return section(
    name,
    {
      definition: "memory",
      aside: device.absolute ? null : device.listed ? LISTED_ONLY : RECORDED_ONLY,
    },
    tiles([
      {
        label: "Peak in tensors",
        value: format.bytes(device.peak_allocated_bytes),
        note: [bound, device.peak_step === null ? null : `step ${device.peak_step}`].filter(Boolean).join(", "),
        definition: "peak-memory",
      },
      { label: "Peak reserved", value: format.bytes(device.peak_reserved_bytes), definition: "reserved-memory" },
      { label: "Device memory", value: format.bytes(device.total_bytes) },
      { label: "Headroom", value: format.bytes(device.headroom_bytes), definition: "headroom" },
      {
        label: "Since before recording",
        value: format.bytes(device.before_recording_bytes),
        definition: "before-recording",
      },
    ]),
    curve(device, rank, name),
    batch && [h("h3", {}, term("Other batch sizes", "memory-of-a-batch")), batch],
    device.alive?.length ? alive(device, name) : null,
    device.operators?.length ? operators(device, name) : null,
  );
}

function curve(device, rank, name) {
  if (device.allocated.time_ns.length === 0) return null;
  const axis = format.timeAxis(rank.recording_ns);
  const unit = format.bytesAxis(Math.max(device.peak_allocated_bytes, device.peak_reserved_bytes ?? 0));
  const line = (series, title, settings) => ({
    type: "scatter",
    mode: "lines",
    name: title,
    x: series.time_ns.map((time) => time / axis.size_ns),
    y: series.value.map((value) => value / unit.size),
    customdata: series.value.map(format.bytes),
    hovertemplate: `%{customdata} ${title}<extra>%{x:.4~g} ${axis.name}</extra>`,
    ...settings,
  });
  const draw = () => ({
    data: [
      line(device.allocated, "in tensors", {
        line: { shape: "hv", width: 1.5, color: ink("accent") },
        fill: "tozeroy",
        fillcolor: `${ink("accent")}22`,
      }),
      ...(device.reserved
        ? [
            line(device.reserved, "reserved", {
              line: { shape: "hv", width: 1.5, dash: "dot", color: ink("ink-soft") },
            }),
          ]
        : []),
    ],
    layout: {
      showlegend: Boolean(device.reserved),
      xaxis: { title: `${axis.name} since the start of the recording` },
      yaxis: { title: unit.name, rangemode: "tozero" },
      shapes: boundaries(rank, axis),
      annotations: [peakMark(device.peak_ns / axis.size_ns, device.peak_allocated_bytes / unit.size)],
    },
  });
  return chart({
    title: `${name}: bytes in tensors over the recording; the peak is ${format.bytes(device.peak_allocated_bytes)}`,
    draw,
    height: 260,
  });
}

function boundaries(rank, axis) {
  const { breakdown } = rank;
  if (!breakdown.marked) return [];
  return breakdown.steps.map((step) => ({
    type: "line",
    x0: step.start_ns / axis.size_ns,
    x1: step.start_ns / axis.size_ns,
    yref: "paper",
    y0: 0,
    y1: 1,
    line: { width: 1, dash: "dot", color: ink("line-strong") },
  }));
}

const PART_COLORS = {
  "optimizer state": "optimizer_state",
  temporary: "temporaries",
  other: "before_recording",
};

function alive(device, name) {
  return [
    h("h3", {}, "Memory at the peak"),
    stack(peakParts(device), { title: `${name}: memory at the peak` }),
    table({
      id: `memory-${device.device ?? "host"}`,
      caption: `${name}: blocks alive at the peak`,
      rows: device.alive,
      sort: "bytes",
      columns: column.filled(device.alive, [
        column.text("operator", "Allocated in", {
          code: true,
          value: (row) => row.operator ?? (row.phase || !device.listed ? "(no operator)" : "(before the recording)"),
        }),
        column.text("module", "Module", { code: true, optional: 700 }),
        column.text("phase", "Phase", { optional: 560, value: (row) => (row.phase ? label("phases", row.phase) : null) }),
        column.colored("category", "For", (row) => row.category, { value: (row) => label("memory", row.category) }),
        column.count("blocks", "Blocks"),
        column.bytes("bytes", "Size", { bar: (row) => row.bytes / device.peak_allocated_bytes }),
      ]),
    }),
    device.activations?.length ? modules(device, name) : null,
  ];
}

// The parts of the peak; in reports of older versions, the sums of the blocks.
function peakParts(device) {
  const part = (text, value, color) => ({
    label: text,
    value,
    color,
    text: format.bytes(value),
    definition: `memory-${color}`,
  });
  if (device.parts?.length) {
    return device.parts.map(({ category, bytes }) => ({
      ...part(category, bytes, PART_COLORS[category] ?? category),
      definition: `peak-${category.replace(" ", "-")}`,
    }));
  }
  const sums = new Map();
  for (const row of device.alive) sums.set(row.category, (sums.get(row.category) ?? 0) + row.bytes);
  if (device.before_recording_bytes > 0) sums.set("before_recording", device.before_recording_bytes);
  return [...sums].sort((a, b) => b[1] - a[1]).map(([category, value]) => part(label("memory", category), value, category));
}

function modules(device, name) {
  return [
    h("h3", {}, term("Activations at the peak by module", "activations-by-module")),
    table({
      id: `memory-modules-${device.device ?? "host"}`,
      caption: `${name}: activations at the peak by module`,
      rows: device.activations,
      sort: "bytes",
      columns: [
        column.text("name", "Module", { code: true }),
        column.count("depth", "Depth"),
        column.count("blocks", "Blocks"),
        column.bytes("bytes", "Size", { bar: (row) => row.bytes / device.activations[0].bytes }),
      ],
    }),
  ];
}

function operators(device, name) {
  return [
    h("h3", {}, term("Allocator events by operator", "operator-memory")),
    table({
      id: `memory-operators-${device.device ?? "host"}`,
      caption: `${name}: allocator events by operator`,
      rows: device.operators,
      sort: "allocated_bytes",
      columns: [
        column.text("operator", "Operator", { code: true, value: (row) => row.operator ?? "(no operator)" }),
        column.bytes("allocated_bytes", "Allocated", { bar: (row) => row.allocated_bytes / (device.operators[0].allocated_bytes || 1) }),
        column.bytes("growth_bytes", "Growth"),
        column.count("allocations", "Allocations"),
        column.count("frees", "Frees"),
      ],
    }),
  ];
}
