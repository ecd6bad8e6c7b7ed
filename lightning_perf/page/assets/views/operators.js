// What operators cost, on the host and on the device.

import * as format from "../format.js";
import { missing, section } from "../parts.js";
import { pagedRows } from "../paged.js";
import { table } from "../table.js";
import { per } from "../words.js";

export const operators = { id: "operators", title: "Operators", kinds: ["run", "trace"], missing: reason, render };

function reason({ rank }) {
  if (!rank) return "No step was profiled, so there are no operators.";
  if (!rank.operators?.rows.length) return "The recording holds no operators. Record with `ProfilerActivity.CPU`.";
  return null;
}

function render(context) {
  const why = reason(context);
  if (why) return missing(why);
  const { rank } = context;
  const { operators: found } = rank;
  const steps = Math.max(found.steps, 1);
  const onDevice = found.device_ns !== null;
  const time = (key, title, definition, bar) => ({
    key,
    title,
    kind: "number",
    field: key,
    definition,
    csv: `${key}_per_step`,
    value: (row) => (row[key] === null ? null : row[key] / steps),
    show: format.duration,
    bar,
  });
  const greatest = new Map();
  const most = (key) =>
    greatest.get(key) ?? greatest.set(key, Math.max(1, ...found.rows.map((row) => row[key]))).get(key);
  const columns = [
    { key: "name", title: "Operator", kind: "text", code: true, csv: "operator", value: (row) => row.name },
    ...(onDevice
      ? [
          time(
            "device_self_ns",
            "Device self",
            "device-self-time",
            (row) => row.device_self_ns / most("device_self_ns"),
          ),
          time("device_total_ns", "Device total", "device-total-time"),
        ]
      : []),
    time("host_self_ns", "Host self", "host-self-time", (row) => row.host_self_ns / most("host_self_ns")),
    time("host_total_ns", "Host total", "host-total-time"),
    {
      key: "calls",
      title: "Calls",
      kind: "number",
      csv: "calls_per_step",
      value: (row) => row.calls / steps,
      show: format.count,
    },
  ];
  if (found.rows.some((row) => row.input_shapes !== null)) {
    columns.splice(1, 0, {
      key: "input_shapes",
      title: "Input shapes",
      kind: "text",
      code: true,
      csv: "input_shapes",
      value: (row) => row.input_shapes,
    });
  }
  const unattributed = found.unattributed_device_ns
    ? ` ${format.duration(found.unattributed_device_ns / steps)} of device work was launched by no operator.`
    : "";
  return section(
    "Operators by cost",
    { definition: "operator", aside: `${per(rank)} (over ${format.countOf(found.steps, "step")}).${unattributed}` },
    table({
      id: "operators",
      caption: "Operators by cost",
      columns,
      rows: pagedRows(context, "operators", columns, found.rows),
      sort: onDevice ? "device_self_ns" : "host_self_ns",
    }),
  );
}
