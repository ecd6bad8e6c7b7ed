// Idle time of the device, and the places where the host waits for the device.

import * as column from "../../components/column.js";
import { section, timeStack } from "../../components/parts.js";
import { table } from "../../components/table.js";
import { h } from "../../core/dom.js";
import { link } from "../../core/state.js";
import * as format from "../../text/format.js";
import { label, per } from "../../text/labels.js";

/** Idle time of the device by the host's activity, with the longest gaps. */
export function idlePart(rank) {
  const { idle } = rank;
  const steps = Math.max(idle.steps, 1);
  const rows = idle.classes.filter((row) => row.total_ns > 0);
  const place = (gap) => gap.python ?? gap.operator ?? gap.annotation;
  return section(
    "Device idle",
    {
      definition: "device-idle",
      aside: `${format.duration(idle.idle_ns / steps)} ${per(rank)}, ${format.share(idle.share)}, in ${format.count(idle.gaps / steps)} gaps; the median gap is ${format.duration(idle.median_gap_ns)}`,
    },
    timeStack(
      rows.map((row) => ({
        label: label("gaps", row.name),
        value: row.total_ns,
        color: row.name,
      })),
      steps,
      { title: "Host activity while the device was idle" },
    ),
    table({
      id: "idle",
      caption: "Idle time by host activity",
      rows,
      searchable: false,
      columns: [
        column.colored("cause", "While the host was", (row) => row.name, { value: (row) => label("gaps", row.name) }),
        column.perStep(steps, column.time("total_ns", "Time", { csv: "idle_ns" })),
        column.share("share", "Share", { bar: (row) => row.share }),
        column.perStep(steps, column.count("gaps", "Gaps")),
        column.text("remedy", "Remedy"),
      ],
    }),
    h("h3", {}, "Longest gaps"),
    table({
      id: "gaps",
      caption: "Longest gaps",
      rows: idle.longest,
      searchable: false,
      sort: "length_ns",
      columns: [
        column.count("step", "Step"),
        column.time("start_ns", "At", {
          show: (time, row) => h("a", { href: instantLink(row), title: "Show it on the timeline" }, format.duration(time)),
        }),
        column.time("length_ns", "Length"),
        column.colored("cause", "While", (row) => row.cause, { value: (row) => label("gaps", row.cause) }),
        column.text("place", "In", { code: true, value: place }),
        column.text("after", "Ended by", { code: true }),
      ],
    }),
  );
}

// The timeline around a gap, with three times its length in view.
function instantLink({ start_ns: start, length_ns: length }) {
  const middle = Math.round(start + length / 2);
  return link({ view: "timeline", "time.from": start - length, "time.to": start + 2 * length, "time.at": middle });
}
