// The view "Memory": who held the memory of a snapshot, over time, at the peak and at the end.

import { part } from "../components/blocks.js";
import { chart, chartText, ink, peakMark } from "../components/chart.js";
import { missing, notes, section, stack, tiles } from "../components/parts.js";
import { h } from "../core/dom.js";
import { largest } from "../core/numbers.js";
import { read, write } from "../core/state.js";
import * as format from "../text/format.js";
import { label } from "../text/labels.js";

export const held = { id: "held", title: "Memory", kinds: ["snapshot"], render };

const LINE_COLORS = ["arm-1", "arm-2", "arm-3", "arm-4", "arm-5", "before_recording"];

function render({ report }) {
  if (report.devices.length === 0) return missing("The snapshot holds no memory and no events.");
  return [notes(report.notes), report.devices.map((device, place) => one(device, place, report))];
}

function one(device, place, report) {
  const name = report.devices.length > 1 ? `Device ${device.device}` : "Memory of the device";
  const recorded = device.history.state !== "none";
  const fragmented = sum(device.pools, "fragmented_bytes");
  return [
    part(report, `errors_${place}`),
    section(
      name,
      { definition: "memory-snapshots", aside: recorded ? extent(device.history) : null },
      tiles([
        recorded && {
          label: "Peak allocated",
          text: format.bytes(device.peak.allocated_bytes),
          note: moment(device.peak),
          definition: "snapshot-peak",
        },
        recorded && {
          label: "Reserved at the peak",
          text: format.bytes(device.peak.reserved_bytes),
          definition: "reserved-memory",
        },
        { label: "Allocated at the end", text: format.bytes(device.end.allocated_bytes), definition: "allocated-memory" },
        { label: "Reserved at the end", text: format.bytes(device.reserved_bytes), definition: "reserved-memory" },
        { label: "Free in used segments", text: format.bytes(fragmented), definition: "fragmented-memory" },
      ]),
      device.curve ? curve(device, name) : null,
      recorded ? uses(device.peak, "at the peak", name) : null,
      uses(device.end, "at the end", name),
    ),
    part(report, `growth_${place}`),
    part(report, `groups_${place}`),
    part(report, "settings"),
  ];
}

function extent(history) {
  const time = history.time_ns === null ? "" : ` over ${format.duration(history.time_ns)}`;
  return `${format.countOf(history.events, "event")}${time}`;
}

function moment({ event, time_ns }) {
  return time_ns === null ? `after event ${format.count(event)}` : `after ${format.duration(time_ns)}`;
}

function curve(device, name) {
  const byLine = read().areas === "lines";
  const { curve: data, peak } = device;
  const areas = byLine ? data.lines : data.categories;
  const title = (area) => (byLine ? area.name : label("memory", area.name));
  const color = (area, i) => (byLine ? (LINE_COLORS[i] ?? "unknown") : area.name);
  const most = Math.max(largest(data.reserved_bytes), device.peak.allocated_bytes);
  const unit = format.bytesAxis(most);
  const axis = data.time_ns === null ? { name: "events", size_ns: 1 } : format.timeAxis(device.history.time_ns);
  const x = (data.time_ns ?? data.event).map((value) => value / axis.size_ns);
  const trace = (label_, bytes, settings) => ({
    type: "scatter",
    mode: "lines",
    name: chartText(label_),
    x,
    y: bytes.map((value) => value / unit.size),
    customdata: bytes.map(format.bytes),
    hovertemplate: `%{customdata}  ${chartText(label_)}<extra></extra>`,
    ...settings,
  });
  const draw = () => ({
    data: [
      ...areas.map((area, i) =>
        trace(title(area), area.bytes, {
          stackgroup: "held",
          line: { shape: "hv", width: 0.5, color: ink(color(area, i)) },
          fillcolor: ink(color(area, i)),
        }),
      ),
      trace("reserved", data.reserved_bytes, { line: { shape: "hv", width: 1.5, dash: "dot", color: ink("ink-soft") } }),
    ],
    layout: {
      hovermode: "x unified",
      legend: { orientation: "h", y: -0.25, x: 0, font: { size: 11 }, traceorder: "normal" },
      xaxis: { title: data.time_ns === null ? "events" : `${axis.name} since the first event` },
      yaxis: { title: unit.name, rangemode: "tozero" },
      annotations: [peakMark((peak.time_ns ?? peak.event) / axis.size_ns, peak.allocated_bytes / unit.size)],
    },
  });
  return [
    h(
      "div",
      { class: "controls" },
      h(
        "div",
        { class: "control" },
        h("label", { for: `areas-${device.device}` }, "Areas"),
        h(
          "select",
          { id: `areas-${device.device}`, on: { change: (event) => write({ areas: event.target.value }) } },
          h("option", { value: "uses", selected: !byLine }, "by use"),
          h("option", { value: "lines", selected: byLine }, "by line"),
        ),
      ),
    ),
    chart({
      title: `${name}: allocated memory over time ${byLine ? "by line" : "by use"}; the peak is ${format.bytes(device.peak.allocated_bytes)}`,
      draw,
      height: 380,
    }),
  ];
}

function uses(at, when, name) {
  return [
    h("h3", {}, `Use ${when}`),
    stack(
      at.categories.map((row) => ({
        label: label("memory", row.category),
        value: row.bytes,
        color: row.category,
        text: `${format.bytes(row.bytes)}, ${format.share(row.bytes / at.allocated_bytes)}`,
        definition: `memory-${row.category}`,
      })),
      { title: `${name}: use of the memory ${when}` },
    ),
  ];
}

function sum(rows, key) {
  return rows.reduce((total, row) => total + row[key], 0);
}
