// What the device waits for, and where the host waits for the device.

import { h } from "../dom.js";
import * as format from "../format.js";
import { columns, section, stack, swatch } from "../parts.js";
import { table } from "../table.js";
import { label, per } from "../words.js";

/** Idle time of the device, by what the host did, with its longest gaps. */
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
    stack(
      rows.map((row) => ({
        label: label("gaps", row.name),
        value: row.total_ns,
        color: row.name,
        text: format.duration(row.total_ns / steps),
      })),
      { title: "What the host did while the device idled" },
    ),
    table({
      id: "idle",
      caption: "Idle time by what the host did",
      rows,
      searchable: false,
      columns: [
        {
          key: "name",
          title: "While the host was",
          kind: "text",
          csv: "cause",
          value: (row) => label("gaps", row.name),
          show: (text, row) => h("span", { class: "with-swatch" }, swatch(row.name), text),
        },
        {
          key: "time",
          title: "Time",
          kind: "number",
          csv: "idle_ns_per_step",
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
          bar: (row) => row.share,
        },
        {
          key: "gaps",
          title: "Gaps",
          kind: "number",
          csv: "gaps_per_step",
          value: (row) => row.gaps / steps,
          show: format.count,
        },
        { key: "remedy", title: "What removes it", kind: "text", csv: "remedy", value: (row) => row.remedy },
      ],
    }),
    h("h3", {}, "Longest gaps"),
    table({
      id: "gaps",
      caption: "Longest gaps",
      rows: idle.longest,
      searchable: false,
      sort: "length",
      columns: [
        { key: "step", title: "Step", kind: "number", csv: "step", value: (row) => row.step, show: format.count },
        {
          key: "start",
          title: "At",
          kind: "number",
          csv: "start_ns",
          value: (row) => row.start_ns,
          show: format.duration,
        },
        {
          key: "length",
          title: "Length",
          kind: "number",
          csv: "length_ns",
          value: (row) => row.length_ns,
          show: format.duration,
        },
        {
          key: "cause",
          title: "While",
          kind: "text",
          csv: "cause",
          value: (row) => label("gaps", row.cause),
          show: (text, row) => h("span", { class: "with-swatch" }, swatch(row.cause), text),
        },
        { key: "place", title: "In", kind: "text", code: true, csv: "place", value: place },
        { key: "after", title: "Ended by", kind: "text", code: true, csv: "after", value: (row) => row.after },
      ],
    }),
  );
}

/** Where the host waits for the device; null where it does not. */
export function syncPart(rank) {
  const { sync_points: found } = rank;
  if (!found?.points.length) return null;
  const steps = Math.max(found.steps, 1);
  const time = (key, title) => ({
    key,
    title,
    kind: "number",
    csv: `${key}_per_step`,
    value: (row) => row[key] / steps,
    show: format.duration,
  });
  return section(
    "Waits for the device",
    { definition: "sync-point", aside: per(rank) },
    table({
      id: "sync",
      caption: "Where the host waits for the device",
      rows: found.points,
      columns: [
        {
          key: "operator",
          title: "In",
          kind: "text",
          code: true,
          csv: "operator",
          value: (row) => row.operator ?? "(no operator)",
        },
        { key: "call", title: "Call", kind: "text", code: true, csv: "call", value: (row) => row.call },
        {
          key: "calls",
          title: "Calls",
          kind: "number",
          csv: "calls_per_step",
          value: (row) => row.calls / steps,
          show: format.count,
        },
        time("wait_ns", "Wait"),
        time("drained_ns", "Drained"),
        time("regained_ns", "Regained"),
      ],
    }),
  );
}
