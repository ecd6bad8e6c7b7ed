// Device compute by number format.

import * as column from "../../components/column.js";
import { notice, section, timeStack } from "../../components/parts.js";
import { table } from "../../components/table.js";
import { h } from "../../core/dom.js";
import * as format from "../../text/format.js";
import { arithmeticLabel, label, per } from "../../text/labels.js";
import { units } from "../../text/vendor.js";

/** Device compute by arithmetic; null without any. */
export function arithmetic(rank) {
  const { arithmetic: formats } = rank;
  if (!formats?.compute_ns) return null;
  const steps = Math.max(formats.steps, 1);
  const rows = formats.rows.filter((row) => row.time_ns > 0);
  const busy_ns = rank.breakdown.categories.find((row) => row.name === "device_compute")?.mean_ns ?? 0;
  const sum_ns = formats.compute_ns / steps;
  const unknown_ns = formats.tensor_core_unknown_ns / steps;
  const { cores } = units(rank);
  const sources = (row) =>
    [row.by_operator_ns ? "operator types" : null, row.by_name_ns ? "kernel name" : null].filter(Boolean).join(", ") ||
    format.NOT_AVAILABLE;
  return section(
    "Arithmetic of device compute",
    { definition: "arithmetic", aside: per(rank) },
    sum_ns > 1.01 * busy_ns && busy_ns > 0
      ? notice(
          `Kernels overlap: their times add up to ${format.duration(sum_ns)}, but the device computes for ${format.duration(busy_ns)} ${per(rank)}.`,
        )
      : null,
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
      : h(
          "p",
          {},
          `On ${cores}: ${format.share(formats.tensor_core_share)} of compute time` +
            (unknown_ns ? `; unknown: ${format.duration(unknown_ns)}, ${format.share(unknown_ns / sum_ns)}.` : "."),
        ),
    formats.eligible_unused.map((unused) =>
      notice(
        `Matrix products without ${cores}: ${format.duration(unused.time_ns / steps)} ${per(rank)} in ` +
          `${format.countOf(unused.kernels / steps, "kernel")}, because ${label("reasons", unused.reason)} (${unused.operators.join(", ")}).`,
      ),
    ),
  );
}
