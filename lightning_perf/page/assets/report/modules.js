// The view "Modules": the cost of each module of the model, as a tree.

import * as column from "../components/column.js";
import { section, unlessMissing } from "../components/parts.js";
import { tree } from "../components/tree.js";
import { largest } from "../core/numbers.js";
import * as format from "../text/format.js";
import { per } from "../text/labels.js";
import { markLinks } from "../timeline/links.js";

export const modules = { id: "modules", title: "Modules", kinds: ["run", "trace"], ...unlessMissing(reason, render) };

function reason({ rank }) {
  if (!rank) return "No step was profiled, so there are no modules.";
  if (!rank.modules?.rows.length) {
    return "This recording does not name modules. Record with `PerfCallback(with_stack=True)` or `torch.profiler.profile(with_stack=True)`.";
  }
  return null;
}

function render(context) {
  const { rank } = context;
  const { modules: found } = rank;
  const steps = Math.max(found.steps, 1);
  const onDevice = found.device_ns !== null;
  const outermost = found.rows.filter((row) => row.parent === null);
  const time = (key, title, definition, bar = true) => {
    const whole = largest(outermost.map((row) => row[key] ?? 0));
    return column.perStep(
      steps,
      column.time(key, title, { definition, bar: bar && whole > 0 ? (row) => row[key] / whole : undefined }),
    );
  };
  const columns = column.filled(found.rows, [
    column.text("name", "Module", { csv: "module", go: markLinks(rank, "modules") }),
    ...(onDevice
      ? [
          time("device_total_ns", "Device forward", "module"),
          time("device_self_ns", "own", "module", false),
          time("backward_device_ns", "Device backward", "module-backward"),
        ]
      : []),
    time("host_total_ns", "Host forward", "module"),
    time("host_self_ns", "own", "module", false),
    time("backward_host_ns", "Host backward", "module-backward"),
    column.perStep(steps, column.count("calls", "Calls")),
  ]);
  const apart = found.unattributed_device_ns
    ? ` ${format.duration(found.unattributed_device_ns / steps)} of device work belongs to no module.`
    : "";
  const source = found.source === "python" ? "from Python functions" : "from annotations";
  return section(
    "Modules by cost",
    { definition: "module", aside: `${per(rank)}, ${source}.${apart}` },
    tree({
      id: "modules",
      caption: "Modules by cost",
      columns,
      rows: found.rows,
      sort: onDevice ? "device_total_ns" : "host_total_ns",
      noun: "module",
    }),
  );
}
