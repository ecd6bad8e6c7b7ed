// The view "Kernels": kernels, copies and memsets on the device.

import * as column from "../components/column.js";
import { legend, unlessMissing } from "../components/parts.js";
import { cutNote, pagedRows } from "../components/rows.js";
import { tableSection } from "../components/table.js";
import { largest } from "../core/numbers.js";
import * as format from "../text/format.js";
import { arithmeticLabel, label, per } from "../text/labels.js";
import { units } from "../text/vendor.js";
import { markLinks } from "../timeline/links.js";

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
    column.text("name", "Kernel", { code: true, csv: "kernel", go: markLinks(rank, "kernels"), swatch: (row) => parent(row.category) }),
    column.perStep(steps, column.time("total_ns", "Time")),
    column.share("share", "Share", { bar: (row) => row.share / most }),
    column.perStep(steps, column.count("calls", "Calls")),
    column.time("mean_ns", "Mean"),
    column.text("tensor_cores", units(rank).products, {
      definition: "tensor-cores",
      value: tensorCores,
    }),
    column.text("arithmetic", "Arithmetic", {
      definition: "arithmetic",
      value: (row) => (row.arithmetic === null ? null : arithmeticLabel(row.arithmetic)),
    }),
    column.share("peak_share", "Of peak", { definition: "peak-share" }),
    column.share("occupancy", "Occupancy", { definition: "occupancy" }),
    column.count("blocks_per_sm", units(rank).blocks, { definition: "blocks-per-sm" }),
    column.text("launchers", "Launched by", { code: true, csv: "launched_by", value: launchers, optional: 2000 }),
    column.text("grid", "Grid", { value: (row) => triple(row.grid), definition: "launch-configuration", optional: 1700 }),
    column.text("block", "Block", { value: (row) => triple(row.block), definition: "launch-configuration", optional: 1700 }),
    column.count("registers", "Registers", { definition: "launch-configuration", optional: 1900 }),
    column.bytes("shared_bytes", "Shared memory", { definition: "launch-configuration", optional: 1900 }),
    column.count("configurations", "Configurations", { definition: "launch-configuration", optional: Infinity }),
    column.time("min_ns", "Minimum", { optional: 2400 }),
    column.time("max_ns", "Maximum", { optional: 2400 }),
    column.bytes("bytes", "Bytes", { optional: 2400 }),
    column.text("category", "Category", { value: (row) => label("categories", row.category), optional: 2400 }),
    column.text("tensor_core_reason", `Why not on ${units(rank).cores}`, {
      value: (row) => (row.tensor_core_reason ? label("reasons", row.tensor_core_reason) : null),
      optional: Infinity,
    }),
  ]);
  const used = [...new Set(found.rows.map((row) => parent(row.category)))];
  return tableSection("Device work by cost", {
    before: used.length > 1 ? legend(used.map((name) => ({ label: label("categories", name), color: name }))) : null,
    definition: "kernel",
    aside: `${per(rank)}, ${format.duration(found.device_ns / steps)} in total (work that runs at the same time counts each time)${cut && `. ${cut}`}`,
    id: "kernels",
    columns,
    rows: pagedRows(context, "kernels", found.rows),
    sort: "total_ns",
  });
}

/** Whether a kernel runs on Tensor Cores, as text; null for work that multiplies no matrices. */
function tensorCores(row) {
  if (row.category !== "device_compute") return null;
  if (row.tensor_cores) return "yes";
  if (row.tensor_core_reason) return "not used";
  return row.tensor_cores === false ? null : "unknown";
}

function triple(sizes) {
  return sizes ? sizes.join(" × ") : null;
}
