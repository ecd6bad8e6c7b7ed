// The history of the loss scale.

import { chart, ink } from "../../components/chart.js";
import * as column from "../../components/column.js";
import { notice, section, tiles } from "../../components/parts.js";
import { table } from "../../components/table.js";
import * as format from "../../text/format.js";

/** The loss scale: its changes and their cost. */
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
    history.finished ? null : notice("The run did not end. This is its last known state."),
    history.scheduler_steps_on_skips
      ? notice(
          `Learning-rate schedulers made ${format.countOf(history.scheduler_steps_on_skips, "step")} although the optimizer step was skipped, so the schedule is ahead of the weights.`,
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
        column.text("what", "Change", { value: (row) => kinds[row.kind] }),
        column.count("scale", "New scale"),
        column.time("wasted_ns", "Wasted", { show: (time) => format.duration(time || null) }),
        column.text("origin", "Where", { value: origin }),
      ],
    }),
  );
}

/** The loss scale over the steps, with its overflows. */
function scaleChart(history) {
  const { events } = history;
  const overflows = events.filter((event) => event.kind === "overflow");
  const draw = () => ({
    data: [
      {
        type: "scatter",
        mode: "lines",
        name: "loss scale",
        x: events.map((event) => event.step),
        y: events.map((event) => event.scale),
        line: { shape: "hv", width: 1.6, color: ink("accent") },
        hovertemplate: "%{y:,.0f}<extra>step %{x}</extra>",
      },
      {
        type: "scatter",
        mode: "markers",
        name: "overflow, step skipped",
        x: overflows.map((event) => event.step),
        y: overflows.map((event) => event.scale),
        marker: { color: ink("high"), size: 8, symbol: "x" },
        hovertemplate: "overflow, scale now %{y:,.0f}<extra>step %{x}</extra>",
      },
    ],
    layout: {
      xaxis: { title: "step" },
      yaxis: { title: "loss scale", type: "log", dtick: Math.log10(2) * 2, tickformat: ",.0f" },
      showlegend: overflows.length > 0,
    },
  });
  return chart({ title: `Loss scale over the steps, with ${format.countOf(overflows.length, "overflow")}`, draw, height: 260 });
}
