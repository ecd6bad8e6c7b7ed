// What ran on the device: kernels, copies and memsets.

import { h } from "../dom.js";
import * as format from "../format.js";
import { missing, section, swatch } from "../parts.js";
import { pagedRows } from "../paged.js";
import { table } from "../table.js";
import { arithmeticLabel, label, per } from "../words.js";

export const kernels = { id: "kernels", title: "Kernels", kinds: ["run", "trace"], missing: reason, render };

function reason({ rank }) {
  if (!rank) return "No step was profiled, so there are no kernels.";
  if (!rank.breakdown.has_device)
    return "The recording holds no device work: it was made on the host alone. The operators have its times.";
  if (!rank.kernels?.rows.length) return "No device work begins in the averaged steps.";
  return null;
}

function render(context) {
  const why = reason(context);
  if (why) return missing(why);
  const { rank } = context;
  const { kernels: found } = rank;
  const steps = Math.max(found.steps, 1);
  const launchers = (row) => row.launchers.map((item) => item.operator ?? "(no operator)").join(", ");
  const most = Math.max(...found.rows.map((row) => row.share));
  const parent = (name) => (name.split("_")[0] === "memcpy" ? "memcpy" : name);
  const columns = [
    { key: "name", title: "Kernel", kind: "text", code: true, csv: "kernel", value: (row) => row.name },
    {
      key: "total_ns",
      title: "Time",
      kind: "number",
      csv: "total_ns_per_step",
      value: (row) => row.total_ns / steps,
      show: format.duration,
    },
    {
      key: "share",
      title: "Share",
      kind: "number",
      csv: "share",
      value: (row) => row.share,
      show: format.share,
      bar: (row) => row.share / most,
    },
    {
      key: "calls",
      title: "Calls",
      kind: "number",
      csv: "calls_per_step",
      value: (row) => row.calls / steps,
      show: format.count,
    },
    {
      key: "mean_ns",
      title: "Mean",
      kind: "number",
      csv: "mean_ns",
      value: (row) => row.mean_ns,
      show: format.duration,
    },
    {
      key: "arithmetic",
      title: "Arithmetic",
      kind: "text",
      csv: "arithmetic",
      definition: "arithmetic",
      value: (row) => (row.arithmetic === null ? null : arithmeticLabel(row.arithmetic)),
    },
    {
      key: "occupancy",
      title: "Occupancy",
      kind: "number",
      csv: "occupancy",
      definition: "occupancy",
      value: (row) => row.occupancy,
      show: format.share,
    },
    {
      key: "blocks_per_sm",
      title: "Blocks/SM",
      kind: "number",
      csv: "blocks_per_sm",
      definition: "blocks-per-sm",
      value: (row) => row.blocks_per_sm,
      show: format.count,
    },
    { key: "min_ns", title: "Least", kind: "number", csv: "min_ns", value: (row) => row.min_ns, show: format.duration },
    { key: "max_ns", title: "Most", kind: "number", csv: "max_ns", value: (row) => row.max_ns, show: format.duration },
    {
      key: "category",
      title: "Category",
      kind: "text",
      csv: "category",
      value: (row) => label("categories", row.category),
      show: (text, row) => h("span", { class: "with-swatch" }, swatch(parent(row.category)), text),
    },
    { key: "bytes", title: "Bytes", kind: "number", csv: "bytes", value: (row) => row.bytes, show: format.bytes },
    { key: "launchers", title: "Launched by", kind: "text", code: true, csv: "launched_by", value: launchers },
  ].filter((column) => column.kind === "text" || found.rows.some((row) => column.value(row) !== null));
  return section(
    "Device work by cost",
    {
      definition: "kernel",
      aside: `${per(rank)}, ${format.duration(found.device_ns / steps)} in all (work that runs at once counts each)`,
    },
    table({
      id: "kernels",
      caption: "Device work by cost",
      columns,
      rows: pagedRows(context, "kernels", columns, found.rows),
      sort: "total_ns",
    }),
  );
}
