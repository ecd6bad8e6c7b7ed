// The view "Kernels": kernels, copies and memsets on the device.

import * as column from "../components/column.js";
import { unlessMissing } from "../components/parts.js";
import { cutNote, pagedRows } from "../components/rows.js";
import { tableSection } from "../components/table.js";
import { largest } from "../core/numbers.js";
import * as format from "../text/format.js";
import { arithmeticLabel, label, per } from "../text/labels.js";

export const kernels = { id: "kernels", title: "Kernels", kinds: ["run", "trace"], ...unlessMissing(reason, render) };

function reason({ rank }) {
  if (!rank) return "No step was profiled, so there are no kernels.";
  if (!rank.breakdown.has_device)
    return "This recording has no device work, because it covers the host only. The view Operators has the times.";
  if (!rank.kernels?.rows.length) return "No device work starts in the averaged steps.";
  return null;
}

function render(context) {
  const { rank } = context;
  const { kernels: found } = rank;
  const steps = Math.max(found.steps, 1);
  const launchers = (row) => row.launchers.map((item) => item.operator ?? "(no operator)").join(", ");
  const cut = cutNote(context, "kernels", found.rows);
  const most = largest(found.rows.map((row) => row.share));
  const parent = (name) => (name.split("_")[0] === "memcpy" ? "memcpy" : name);
  const columns = column.filled(found.rows, [
    column.text("name", "Kernel", { code: true, csv: "kernel" }),
    column.perStep(steps, column.time("total_ns", "Time")),
    column.share("share", "Share", { bar: (row) => row.share / most }),
    column.perStep(steps, column.count("calls", "Calls")),
    column.time("mean_ns", "Mean"),
    column.text("arithmetic", "Arithmetic", {
      definition: "arithmetic",
      value: (row) => (row.arithmetic === null ? null : arithmeticLabel(row.arithmetic)),
    }),
    column.share("occupancy", "Occupancy", { definition: "occupancy" }),
    column.count("blocks_per_sm", "Blocks/SM", { definition: "blocks-per-sm" }),
    column.time("min_ns", "Minimum"),
    column.time("max_ns", "Maximum"),
    column.colored("category", "Category", (row) => parent(row.category), {
      value: (row) => label("categories", row.category),
    }),
    column.bytes("bytes", "Bytes"),
    column.text("launchers", "Launched by", { code: true, csv: "launched_by", value: launchers }),
  ]);
  return tableSection("Device work by cost", {
    definition: "kernel",
    aside: `${per(rank)}, ${format.duration(found.device_ns / steps)} in total (work that runs at the same time counts each time)${cut && `. ${cut}`}`,
    id: "kernels",
    columns,
    rows: pagedRows(context, "kernels", found.rows),
    sort: "total_ns",
  });
}
