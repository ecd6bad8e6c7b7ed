// The time of the whole fit: one bar with all groups, and a table of their parts.

import * as column from "../../components/column.js";
import { facts, notice, section, stack } from "../../components/parts.js";
import { table } from "../../components/table.js";
import * as format from "../../text/format.js";

const COLORS = {
  "set-up": "runtime_alloc",
  "data preparation": "memcpy",
  "worker start-up": "input",
  "sanity check": "memset",
  "first step": "backward",
  "training steps": "forward",
  "epoch boundaries": "unknown",
  validation: "validation",
  checkpoints: "checkpoint",
  logging: "runtime_other",
  callbacks: "device_compute",
  "own cost": "transfer",
  "tear-down": "other",
};

const ENDS = {
  report: "The account ends where the report was made. The tear-down of the Trainer came after it.",
  exception: "The account ends at the error that ended the fit.",
};

/** Where the time of a whole fit went. */
export function fitTime(fit) {
  const rows = fit.groups.flatMap((group) =>
    group.parts.map((part) => ({ ...part, group: group.group, name: part.name || "all of it", count: part.count || null })),
  );
  return section(
    "Time of the whole fit",
    {
      definition: "time-of-the-whole-fit",
      aside: `${format.duration(fit.wall_ns)} in all · ${format.countOf(fit.steps, "step")} · ${format.countOf(fit.epochs, "epoch")}`,
    },
    stack(
      fit.groups.map((group) => ({
        label: group.group,
        value: group.time_ns,
        color: COLORS[group.group] ?? "other",
        text: `${format.duration(group.time_ns)}, ${format.share(group.share)}`,
      })),
      { title: "Time of the whole fit", total: fit.wall_ns },
    ),
    facts([
      fit.first_step_ns === null ? null : ["Time to the first step", format.duration(fit.first_step_ns)],
      fit.samples_per_second === null
        ? null
        : ["Over the whole fit", format.rate(fit.samples_per_second, "samples")],
      fit.tokens_per_second ? ["Tokens over the whole fit", format.rate(fit.tokens_per_second, "tokens")] : null,
      fit.before_ns === null ? null : ["Process before the fit", format.duration(fit.before_ns)],
      fit.compile_ns === null ? null : ["Compilation in the first step", format.duration(fit.compile_ns)],
    ]),
    ENDS[fit.end] ? notice(ENDS[fit.end]) : null,
    table({
      id: "fit-time",
      caption: "Parts of the fit",
      rows,
      columns: [
        column.text("group", "Group"),
        column.text("name", "Part"),
        column.time("time_ns", "Time", { csv: "time_ns" }),
        column.share("share", "Share"),
        column.count("count", "Calls"),
      ],
    }),
  );
}
