// The time of the whole fit, and of compilations, as one bar each.

import { stack } from "../../components/parts.js";
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

const MOMENTS = [
  ["before_ns", "before training", "runtime_alloc"],
  ["first_step_ns", "first step", "backward"],
  ["step_ns", "later steps", "forward"],
  ["between_ns", "between steps", "validation"],
];

/** Where the time of a whole fit went. */
export function fitBar(fit) {
  const groups = fit.groups.map(({ group, time_ns }) => ({ label: group, time_ns, color: COLORS[group] ?? "other" }));
  return bar("Time of the whole fit", groups, fit.wall_ns);
}

/** When compilations ran. */
export function compilationBar(report) {
  const moments = MOMENTS.map(([key, label, color]) => ({ label, time_ns: report[key], color }));
  return bar("Time of compilations", moments, report.time_ns);
}

function bar(title, parts, total) {
  const text = (time_ns) => `${format.duration(time_ns)}, ${format.share(time_ns / total)}`;
  return stack(parts.map(({ label, time_ns, color }) => ({ label, value: time_ns, color, text: text(time_ns) })), { title, total });
}
