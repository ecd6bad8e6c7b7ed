// Device compute by number format.

import * as column from "../../components/column.js";
import { notice, section, timeStack } from "../../components/parts.js";
import { table } from "../../components/table.js";
import { h } from "../../core/dom.js";
import * as format from "../../text/format.js";
import { arithmeticLabel, label, per } from "../../text/labels.js";

/** Device compute by arithmetic; null without any. */
export function arithmetic(rank) {
  const { arithmetic: formats } = rank;
  if (!formats?.compute_ns) return null;
  const steps = Math.max(formats.steps, 1);
  const rows = formats.rows.filter((row) => row.time_ns > 0);
  const sources = (row) =>
    [row.by_operator_ns ? "operator types" : null, row.by_name_ns ? "kernel name" : null].filter(Boolean).join(", ") ||
    format.NOT_AVAILABLE;
  return section(
    "Arithmetic of device compute",
    { definition: "arithmetic", aside: per(rank) },
    timeStack(
      rows.map((row) => ({
        label: arithmeticLabel(row.name),
        value: row.time_ns,
        color: row.name,
      })),
      steps,
      { title: "Device compute by arithmetic" },
    ),
    table({
      id: "arithmetic",
      caption: "Device compute by arithmetic",
      rows,
      columns: [
        column.text("arithmetic", "Arithmetic", { value: (row) => arithmeticLabel(row.name) }),
        column.perStep(steps, column.time("time_ns", "Time")),
        column.share("share", "Share", { bar: (row) => row.share }),
        column.text("source", "Source", { value: sources }),
      ],
    }),
    formats.tensor_core_share === null
      ? null
      : h("p", {}, `On Tensor Cores: ${format.share(formats.tensor_core_share)} of compute time.`),
    formats.eligible_unused.map((unused) =>
      notice(
        `Matrix products without Tensor Cores: ${format.duration(unused.time_ns / steps)} ${per(rank)} in ` +
          `${format.countOf(unused.kernels / steps, "kernel")}, because ${label("reasons", unused.reason)} (${unused.operators.join(", ")}).`,
      ),
    ),
  );
}
