// The reliability of the recording, and the effect of the profiler on the run.

import * as column from "../../components/column.js";
import { tableSection } from "../../components/table.js";
import { h } from "../../core/dom.js";
import * as format from "../../text/format.js";

/** A line about missing parts of the recording. */
export function trustLine(trust) {
  const linked = trust.kernels - trust.unlinked_kernels;
  const parts = [
    trust.steps ? `${trust.steps - trust.incomplete_steps} of ${format.countOf(trust.steps, "step")} complete` : null,
    trust.lost_events ? `${format.countOf(trust.lost_events, "event")} lost` : "no event lost",
    trust.truncated_ranks ? `${format.countOf(trust.truncated_ranks, "recording")} cut short` : null,
    trust.deviceless_ranks
      ? `no device work in ${format.countOf(trust.deviceless_ranks, "recording")} of a GPU's run`
      : null,
    trust.kernels
      ? trust.unlinked_kernels
        ? `${format.share(linked / trust.kernels)} of ${format.count(trust.kernels)} kernels have their launch`
        : "every kernel has its launch"
      : null,
    trust.empty_launches
      ? `${format.count(trust.empty_launches)} ${trust.empty_launches === 1 ? "launch" : "launches"} without recorded work: device times are too low`
      : null,
    trust.cost_ns === null
      ? null
      : `the profiler cost ${format.duration(trust.cost_ns)}${trust.cost_share === null ? "" : `, ${format.share(trust.cost_share)} of the run`}`,
  ];
  return h("p", { class: "aside" }, h("b", {}, "Trust "), parts.filter(Boolean).join(" · "));
}

/** The effect of each profiler window on the run; null if it was not measured. */
export function windowsPart(trust) {
  if (!trust?.windows?.length) return null;
  const ratio = (key, title) =>
    column.number(key, title, {
      csv: `${key}_ratio`,
      value: (row) => row[key]?.estimate ?? null,
      show: (value, row) =>
        value === null
          ? format.NOT_AVAILABLE
          : `${format.ratio(value)} (${format.ratio(row[key].low)} – ${format.ratio(row[key].high)})`,
    });
  const back = { true: "yes", false: "no", null: "unknown" };
  return tableSection("Effect of the profiler on the run", {
    definition: "profiler-cost",
    aside: trust.analysis_ns === null ? null : `the analysis took ${format.duration(trust.analysis_ns)}`,
    id: "windows",
    caption: "Windows of the profiler",
    rows: trust.windows,
    columns: [
      column.text("steps", "Steps", {
        value: ({ window }) =>
          `${window.first_step} – ${window.last_step}${window.capture ? ` (${window.capture})` : ""}`,
      }),
      column.time("before_ns", "Step before"),
      column.time("inside_ns", "inside"),
      column.time("after_ns", "after"),
      ratio("overhead", "Inside / before"),
      ratio("lasting", "After / before"),
      column.text("recovered", "Recovered", { value: (row) => back[row.returned] }),
      column.time("cost_ns", "Cost"),
    ],
  });
}
