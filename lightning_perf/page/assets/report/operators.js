// The view "Operators": the cost of operators on the host and on the device.

import * as column from "../components/column.js";
import { unlessMissing } from "../components/parts.js";
import { cutNote, pagedRows } from "../components/rows.js";
import { tableSection } from "../components/table.js";
import { largest } from "../core/numbers.js";
import * as format from "../text/format.js";
import { per } from "../text/labels.js";

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
  const columns = column.filled(found.rows, [
    column.text("name", "Operator", { code: true, csv: "operator" }),
    column.text("input_shapes", "Input shapes", { code: true }),
    ...(onDevice
      ? [
          time("device_self_ns", "Device self", "device-self-time", true),
          time("device_total_ns", "Device total", "device-total-time"),
        ]
      : []),
    time("host_self_ns", "Host self", "host-self-time", true),
    time("host_total_ns", "Host total", "host-total-time"),
    column.perStep(steps, column.count("calls", "Calls")),
  ]);
  const cut = cutNote(context, "operators", found.rows);
  const unattributed = found.unattributed_device_ns
    ? ` ${format.duration(found.unattributed_device_ns / steps)} of device work was not launched by an operator.`
    : "";
  return tableSection("Operators by cost", {
    definition: "operator",
    aside: `${per(rank)} (over ${format.countOf(found.steps, "step")}).${unattributed}${cut && ` ${cut}`}`,
    id: "operators",
    columns,
    rows: pagedRows(context, "operators", found.rows),
    sort: onDevice ? "device_self_ns" : "host_self_ns",
  });
}
