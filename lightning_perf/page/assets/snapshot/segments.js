// The view "Segments": the memory that the allocator took from the device, and its contents at the end.

import { part } from "../components/blocks.js";
import * as column from "../components/column.js";
import { legend, section } from "../components/parts.js";
import { table } from "../components/table.js";
import { h } from "../core/dom.js";
import { largest } from "../core/numbers.js";
import { paint } from "../core/theme.js";
import * as format from "../text/format.js";
import { label } from "../text/labels.js";

export const segments = {
  id: "segments",
  title: "Segments",
  kinds: ["snapshot"],
  missing: ({ report }) => (report.devices.some((device) => device.segments.length) ? null : "The snapshot has no segments."),
  render: ({ report }) => report.devices.map((device, place) => one(device, place, report)),
};

const OTHERS = { free: ["free", "sunken"], mixed: ["blocks of several uses", "ink-soft"] };

function one(device, place, report) {
  const named = report.devices.length > 1;
  const title = named ? `Device ${device.device}` : "Segments";
  const shown = new Set(device.segments.flatMap((segment) => segment.runs.map((run) => run.category)));
  const most = largest(device.segments.map((segment) => segment.reserved_bytes), 1);
  const left = device.left_out_segments;
  return [
    part(report, `pools_${place}`),
    section(
      title,
      {
        definition: "segment",
        aside: left ? `The largest ${device.segments.length} of ${format.count(device.segments.length + left)}` : null,
      },
      h(
        "div",
        { class: "segments-legend" },
        legend([...shown].map((category) => ({ label: nameOf(category), color: colorOf(category) }))),
      ),
      h(
        "ul",
        { class: "segments" },
        device.segments.map((segment) => bar(segment, most)),
      ),
      table({
        id: `segments-${device.device}`,
        caption: "Segments at the end",
        rows: device.segments,
        columns: [
          column.text("address", "Address", { code: true, value: (row) => `0x${row.address}` }),
          column.bytes("reserved_bytes", "Size"),
          column.bytes("used_bytes", "In use", { bar: (row) => row.used_bytes / (row.reserved_bytes || 1) }),
          column.bytes("largest_free_bytes", "Largest free block"),
          column.text("size", "Pool", { value: poolName }),
          column.text("is_expandable", "Expandable", { value: (row) => (row.is_expandable ? "yes" : "no"), optional: 1100 }),
        ],
      }),
    ),
  ];
}

function bar(segment, most) {
  const used = format.share(segment.used_bytes / (segment.reserved_bytes || 1));
  const text = `${format.bytes(segment.reserved_bytes)}, ${used} in use`;
  return h(
    "li",
    {},
    h("span", { class: "segment-size" }, text),
    h(
      "div",
      {
        class: "stack-bar",
        role: "img",
        "aria-label": `Segment 0x${segment.address}: ${text}`,
        style: { width: `${Math.max(2, (100 * segment.reserved_bytes) / most)}%` },
      },
      segment.runs.map((run) =>
        h("span", {
          title: `${nameOf(run.category)}: ${format.bytes(run.bytes)}`,
          style: { width: `${(100 * run.bytes) / segment.reserved_bytes}%`, background: paint(colorOf(run.category)) },
        }),
      ),
    ),
  );
}

function poolName({ size, stream, pool }) {
  const parts = [size];
  if (stream) parts.push(`stream 0x${stream.toString(16)}`);
  if (pool !== "0, 0") parts.push(`pool ${pool}`);
  return parts.join(", ");
}

function nameOf(category) {
  return OTHERS[category]?.[0] ?? label("memory", category);
}

function colorOf(category) {
  return OTHERS[category]?.[1] ?? category;
}
