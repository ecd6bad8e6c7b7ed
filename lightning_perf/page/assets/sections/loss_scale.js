// The history of the loss scale.

import * as column from "../column.js";
import * as format from "../format.js";
import { notice, section, tiles } from "../parts.js";
import { scaleChart } from "../sections/precision_charts.js";
import { table } from "../table.js";

/** The loss scale: how it changed, and what that cost. */
export function lossScale(history) {
  const kinds = { start: "start", overflow: "overflow: step skipped", growth: "growth", end: "end" };
  const origin = (event) => {
    if (!event.origin) return null;
    return event.origin.module
      ? `first ${event.origin.value} in ${event.origin.module}, ${event.origin.what}`
      : `the loss itself was ${event.origin.value}`;
  };
  return section(
    "Loss scale",
    { definition: "loss-scale" },
    history.finished ? null : notice("The run did not end: this is its last known state."),
    history.scheduler_steps_on_skips
      ? notice(
          `Learning-rate schedulers made ${format.countOf(history.scheduler_steps_on_skips, "step")} on skipped optimizer steps: the schedule is ahead of the weights by that.`,
        )
      : null,
    tiles([
      {
        label: "Scale at the end",
        value: format.count(history.final_scale),
        note: `${format.count(history.initial_scale)} at the start`,
        definition: "loss-scale",
      },
      { label: "Range", value: `${format.count(history.lowest_scale)} – ${format.count(history.highest_scale)}` },
      {
        label: "Skipped steps",
        value: format.count(history.skipped_steps),
        note: `of ${format.count(history.attempts)}`,
        definition: "loss-scale",
      },
      {
        label: "Goodput",
        value: format.share(history.trained_ns ? 1 - history.wasted_ns / history.trained_ns : null),
        note: `${format.duration(history.wasted_ns)} wasted`,
        definition: "goodput",
      },
      {
        label: "Schedule ahead",
        value: format.count(history.scheduler_steps_on_skips),
        note: "steps",
        definition: "schedule-ahead",
      },
    ]),
    scaleChart(history),
    table({
      id: "scale-events",
      caption: "Changes of the loss scale",
      rows: history.events,
      columns: [
        column.count("step", "Step"),
        column.text("what", "What", { value: (row) => kinds[row.kind] }),
        column.count("scale", "Scale from here"),
        column.time("wasted_ns", "Wasted", { show: (time) => format.duration(time || null) }),
        column.text("origin", "Where", { value: origin }),
      ],
    }),
  );
}
