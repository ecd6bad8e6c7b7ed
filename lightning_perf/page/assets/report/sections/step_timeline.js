// A timeline of the recording: its steps, the longest gaps of the device, the launch queue and memory, on one axis of time.

import { swatch } from "../../components/parts.js";
import { fill, h, svg } from "../../core/dom.js";
import { largest } from "../../core/numbers.js";
import { paint } from "../../core/theme.js";
import * as format from "../../text/format.js";
import { label } from "../../text/labels.js";

const WIDTH = 1000; // units of the drawings, which stretch to the page's width
const TICKS = 5;

/** The timeline of a rank's recording. */
export function stepTimeline(rank) {
  const { breakdown } = rank;
  const steps = breakdown.steps;
  const last = steps[steps.length - 1];
  const begin = steps.length ? Math.min(0, steps[0].start_ns) : 0;
  const end = Math.max(rank.recording_ns, last ? last.start_ns + last.wall_ns : 0, 1);
  const at = (time) => `${(100 * (time - begin)) / (end - begin)}%`;
  const rows = breakdown.categories.filter((row) => row.parent === null && row.per_step_ns?.some((time) => time > 0));
  const detail = h("div", { class: "strip-detail", role: "status" });
  const device = rank.memory?.devices.find((item) => item.device !== null) ?? rank.memory?.devices[0];

  const show = (i) => {
    const step = steps[i];
    fill(
      detail,
      h(
        "h3",
        {},
        `${breakdown.marked ? `Step ${step.number}` : "Recording"}: ${format.duration(step.wall_ns)}${step.complete ? "" : ", cut off by the recording"}`,
      ),
      h(
        "ul",
        { class: "legend" },
        rows
          .filter((row) => row.per_step_ns[i] > 0)
          .map((row) =>
            h(
              "li",
              {},
              swatch(row.name),
              label("categories", row.name),
              h("b", {}, format.duration(row.per_step_ns[i])),
            ),
          ),
      ),
    );
  };

  const blocks = steps.map((step, i) =>
    h(
      "button",
      {
        type: "button",
        class: step.complete ? "strip-step" : "strip-step cut",
        style: { left: at(step.start_ns), width: at(begin + step.wall_ns) },
        "aria-label": `${breakdown.marked ? `Step ${step.number}` : "Recording"}, ${format.duration(step.wall_ns)}`,
        on: { click: () => show(i), focus: () => show(i), mouseenter: () => show(i) },
      },
      rows.map((row) => h("span", { style: { "flex-grow": row.per_step_ns[i], background: paint(row.name) } })),
      h("b", {}, breakdown.marked ? step.number : ""),
    ),
  );
  const gaps = (rank.idle?.longest ?? []).map((gap) =>
    h("span", {
      class: "strip-gap",
      style: { left: at(gap.start_ns), width: at(begin + gap.length_ns), background: paint(gap.cause) },
      title: `${format.duration(gap.length_ns)} idle, ${label("gaps", gap.cause)}`,
    }),
  );
  if (steps.length) show(0);
  return h(
    "div",
    { class: "strip" },
    lane("Steps", h("div", { class: "strip-lane steps" }, blocks)),
    gaps.length ? lane("Longest gaps", h("div", { class: "strip-lane gaps" }, gaps)) : null,
    rank.launches?.queue?.series.time_ns.length
      ? lane(
          "Queue depth",
          area(rank.launches.queue.series, begin, end, "kernel_launch"),
          format.count(rank.launches.queue.max),
        )
      : null,
    device?.allocated.time_ns.length
      ? lane("Memory", area(device.allocated, begin, end, "host_compute"), format.bytes(device.peak_allocated_bytes))
      : null,
    lane(
      "",
      h(
        "div",
        { class: "strip-axis", "aria-hidden": "true" },
        Array.from({ length: TICKS + 1 }, (_, i) =>
          h("span", { style: { left: `${(100 * i) / TICKS}%` } }, format.duration(begin + (i * (end - begin)) / TICKS)),
        ),
      ),
    ),
    detail,
  );
}

function lane(title, content, most = null) {
  return [h("div", { class: "strip-name" }, title, most ? h("small", {}, `up to ${most}`) : null), content];
}

// A step function as a filled area.
function area(series, begin, end, color) {
  const most = largest(series.value, 1);
  const x = (time) => ((time - begin) / (end - begin)) * WIDTH;
  const y = (value) => 100 - (100 * value) / most;
  let path = `M${x(series.time_ns[0])},100`;
  series.time_ns.forEach((time, i) => {
    path += `V${y(series.value[i]).toFixed(1)}H${x(series.time_ns[i + 1] ?? end).toFixed(2)}`;
  });
  return svg(
    "svg",
    { class: "strip-lane area", viewBox: `0 0 ${WIDTH} 100`, preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("path", { d: `${path}V100Z`, style: { fill: paint(color) } }),
  );
}
