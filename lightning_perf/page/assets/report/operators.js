// The view "Operators": the cost of operators on the host and on the device.

import * as column from "../components/column.js";
import { section, unlessMissing } from "../components/parts.js";
import { cutNote, pagedRows } from "../components/rows.js";
import { table, tableSection } from "../components/table.js";
import { tree } from "../components/tree.js";
import { h } from "../core/dom.js";
import { largest } from "../core/numbers.js";
import * as format from "../text/format.js";
import { label, per } from "../text/labels.js";
import { units } from "../text/vendor.js";
import { markLinks } from "../timeline/links.js";

export const operators = { id: "operators", title: "Operators", kinds: ["run", "trace"], ...unlessMissing(reason, render) };

function reason({ rank }) {
  if (!rank) return "No step was profiled, so there are no operators.";
  if (!rank.operators?.rows.length) return "This recording has no operators. Record with `ProfilerActivity.CPU`.";
  return null;
}

function render(context) {
  const { rank } = context;
  const { operators: found } = rank;
  const steps = Math.max(found.steps, 1);
  const onDevice = found.device_ns !== null;
  const time = (key, title, definition, bars = false) => {
    const most = bars && largest(found.rows.map((row) => row[key]), 1);
    const bar = bars ? (row) => row[key] / most : undefined;
    return column.perStep(steps, column.time(key, title, { definition, bar }));
  };
  const memory = memoryColumns(rank, steps);
  const columns = column.filled(found.rows, [
    column.text("name", "Operator", { code: true, csv: "operator", go: markLinks(rank, "operators") }),
    column.text("input_shapes", "Input shapes", { code: true, value: shapesOf, optional: 1300 }),
    ...(onDevice
      ? [
          time("device_self_ns", "Device self", "device-self-time", true),
          time("device_total_ns", "Device total", "device-total-time"),
          column.share("tensor_core_share", `On ${units(rank).cores}`, {
            definition: "tensor-cores",
            value: (row) => (row.device_self_ns && row.tensor_core_ns != null ? row.tensor_core_ns / row.device_self_ns : null),
          }),
        ]
      : []),
    time("host_self_ns", "Host self", "host-self-time", true),
    time("host_total_ns", "Host total", "host-total-time"),
    column.perStep(steps, column.count("calls", "Calls")),
    column.text("tensor_core_reason", `Why not on ${units(rank).cores}`, {
      value: (row) => (row.tensor_core_reason ? label("reasons", row.tensor_core_reason) : null),
      optional: 1900,
    }),
    ...(memory ? [memory("allocated_bytes", "Allocates"), memory("growth_bytes", "Memory growth")] : []),
  ]);
  const cut = cutNote(context, "operators", found.rows);
  const unattributed = found.unattributed_device_ns
    ? ` ${format.duration(found.unattributed_device_ns / steps)} of device work was not launched by an operator.`
    : "";
  const list = tableSection("Operators by cost", {
    definition: "operator",
    aside: `${per(rank)} (over ${format.countOf(found.steps, "step")}).${unattributed}${cut && ` ${cut}`}`,
    id: "operators",
    columns,
    rows: pagedRows(context, "operators", found.rows),
    sort: onDevice ? "device_self_ns" : "host_self_ns",
    details: (row) => (row.shapes?.length || row.stacks?.length ? () => origins(row, steps, onDevice) : null),
  });
  return [list, rank.call_tree?.rows.length ? callTree(rank.call_tree, onDevice) : null];
}

// The shapes of a row: its own if the report has a row for each, or else those that cost most.
function shapesOf(row) {
  const shapes = row.input_shapes ?? row.shapes?.[0]?.shapes;
  return shapes ? `${shapes.replaceAll(",", ", ")}${row.shapes?.length > 1 ? " …" : ""}` : null;
}

// Bytes of the operator's allocator events per step, over all devices; null without recorded events.
function memoryColumns(rank, steps) {
  const sums = new Map();
  for (const device of rank.memory?.devices ?? []) {
    for (const row of device.operators ?? []) {
      const sum = sums.get(row.operator) ?? { allocated_bytes: 0, growth_bytes: 0 };
      for (const key of Object.keys(sum)) sum[key] += row[key];
      sums.set(row.operator, sum);
    }
  }
  if (sums.size === 0) return null;
  return (key, title) =>
    column.bytes(key, title, {
      csv: key,
      definition: "operator-memory",
      value: (row) => sums.get(row.name)?.[key] ?? null,
      optional: 1600,
    });
}

function origins(row, steps, onDevice) {
  const time = (key, title) => column.perStep(steps, column.time(key, title));
  const costs = [
    ...(onDevice ? [time("device_self_ns", "Device self")] : []),
    time("host_self_ns", "Host self"),
    column.perStep(steps, column.count("calls", "Calls")),
  ];
  const part = (id, title, rows, first) => [
    h("h3", {}, title),
    table({ id: `${id}-${row.name}`, caption: `${title} of ${row.name}`, rows, columns: [first, ...costs], searchable: false }),
  ];
  return [
    row.shapes?.length
      ? part("shapes", "Input shapes that cost most", row.shapes, column.text("shapes", "Input shapes", { code: true }))
      : null,
    row.stacks?.length
      ? part(
          "stacks",
          "Python stacks that cost most",
          row.stacks,
          column.text("frames", "Called from", {
            value: (each) => each.frames.join(" ← "),
            show: (_, each) => h("ol", { class: "frames" }, each.frames.map((frame) => h("li", {}, h("code", {}, frame)))),
          }),
        )
      : null,
  ];
}

function callTree(found, onDevice) {
  const steps = Math.max(found.steps, 1);
  const outermost = found.rows.filter((row) => row.parent === null);
  const time = (key, title, definition, bar = false) => {
    const whole = bar && largest(outermost.map((row) => row[key] ?? 0));
    return column.perStep(steps, column.time(key, title, { definition, bar: whole > 0 ? (row) => row[key] / whole : undefined }));
  };
  return section(
    "Call tree",
    {
      definition: "call-tree",
      aside: found.left_out ? `${format.countOf(found.left_out, "cheaper call path")} left out` : "which operator calls which",
    },
    tree({
      id: "call-tree",
      caption: "Operators by call path",
      columns: [
        column.text("name", "Operator", { csv: "operator" }),
        ...(onDevice
          ? [time("device_total_ns", "Device total", "device-total-time", true), time("device_self_ns", "Device self", "device-self-time")]
          : []),
        time("host_total_ns", "Host total", "host-total-time", true),
        time("host_self_ns", "Host self", "host-self-time"),
        column.perStep(steps, column.count("calls", "Calls")),
      ],
      rows: found.rows,
      sort: onDevice ? "device_total_ns" : "host_total_ns",
      noun: "call path",
      closed: true,
    }),
  );
}
