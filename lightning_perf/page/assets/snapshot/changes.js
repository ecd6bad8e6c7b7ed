// The view "Changes": two memory snapshots side by side.

import * as column from "../components/column.js";
import { missing, notes } from "../components/parts.js";
import { tableSection } from "../components/table.js";
import * as format from "../text/format.js";
import { label } from "../text/labels.js";

export const snapshotChanges = { id: "changes", title: "Changes", kinds: ["snapshot-diff"], render };

function render({ report }) {
  if (report.devices.length === 0) return missing("The snapshots have no device in common.");
  const named = report.devices.length > 1;
  return [notes(report.notes), report.devices.map((device) => one(device, named ? `Device ${device.device}: ` : ""))];
}

function one(device, prefix) {
  const title = (text) => (prefix ? `${prefix}${text[0].toLowerCase()}${text.slice(1)}` : text);
  return [
    tableSection(title("Totals"), {
      id: `totals-${device.device}`,
      definition: "allocated-memory",
      rows: device.totals,
      columns: [column.text("name", "Moment"), ...sizes("before_bytes", "after_bytes")],
    }),
    tableSection(title("Memory by use at the peak"), {
      id: `uses-${device.device}`,
      definition: "memory-snapshots",
      rows: device.categories,
      columns: [
        column.colored("name", "Use", (row) => row.name, { value: (row) => label("memory", row.name) }),
        ...sizes("before_bytes", "after_bytes"),
      ],
    }),
    tableSection(title("Lines"), {
      id: `lines-${device.device}`,
      definition: "line-of-memory",
      caption: "Memory at the peak by line",
      rows: device.lines,
      columns: [
        column.text("line", "Line", { code: true }),
        ...sizes("before_peak_bytes", "after_peak_bytes"),
        column.colored("category", "For", (row) => row.category, { value: (row) => label("memory", row.category) }),
        column.text("module", "Module", { optional: 1100 }),
        column.bytes("before_end_bytes", "End before", { optional: 1100 }),
        column.bytes("after_end_bytes", "End after", { optional: 1100 }),
      ],
    }),
  ];
}

function sizes(before, after) {
  return [
    column.bytes(before, "Before"),
    column.bytes(after, "After"),
    column.bytes("change", "Change", {
      csv: "change_bytes",
      value: (row) => row[after] - row[before],
      show: (value) => (value === 0 ? "±0 B" : `${value > 0 ? "+" : "−"}${format.bytes(Math.abs(value))}`),
    }),
  ];
}
