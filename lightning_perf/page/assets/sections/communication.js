// What communication costs one rank.

import * as format from "../format.js";
import { section, stack, tiles } from "../parts.js";
import { table } from "../table.js";
import { label, per } from "../words.js";

/** Collectives of a rank, and how much of them compute hides. */
export function communication(rank, several) {
  const { communication: found } = rank;
  const steps = Math.max(found.steps.length, 1);
  return section(
    several ? `Communication of rank ${rank.rank ?? "?"}` : "Communication",
    { definition: "communication-time", aside: per(rank) },
    found.steps.length
      ? [
          tiles([
            {
              label: "In collectives",
              value: format.duration(found.communication_ns / steps),
              definition: "communication-time",
            },
            {
              label: "Beside compute",
              value: format.duration(found.overlapped_ns / steps),
              definition: "communication-time",
            },
            {
              label: "Exposed",
              value: format.duration(found.exposed_ns / steps),
              note: found.exposed_share === null ? null : `${format.share(found.exposed_share)} of the step`,
              definition: "communication",
            },
          ]),
          stack(
            [
              {
                label: "beside compute",
                value: found.overlapped_ns,
                color: "device_compute",
                text: format.duration(found.overlapped_ns / steps),
              },
              {
                label: "exposed",
                value: found.exposed_ns,
                color: "communication",
                text: format.duration(found.exposed_ns / steps),
              },
            ],
            { title: "Communication" },
          ),
        ]
      : null,
    found.collectives.length ? collectives(found, steps) : hostCollectives(found),
  );
}

function collectives(found, steps) {
  const figure = (key, title, show, definition) => ({
    key,
    title,
    kind: "number",
    csv: key,
    definition,
    value: (row) => row[key],
    show,
  });
  return table({
    id: "collectives",
    caption: "Collectives by cost",
    rows: found.collectives,
    columns: [
      {
        key: "name",
        title: "Collective",
        kind: "text",
        code: true,
        csv: "collective",
        value: (row) => `${row.name}${row.dtype ? ` ${row.dtype}` : ""}`,
      },
      {
        key: "group",
        title: "Group",
        kind: "text",
        csv: "group",
        value: (row) => (row.group === null ? null : `${row.group}${row.ranks ? `, ${row.ranks} ranks` : ""}`),
      },
      figure("bytes", "Size", format.bytes),
      {
        key: "calls",
        title: "Calls",
        kind: "number",
        csv: "calls_per_step",
        value: (row) => row.calls / steps,
        show: format.count,
      },
      {
        key: "total",
        title: "Time",
        kind: "number",
        csv: "total_ns_per_step",
        value: (row) => row.total_ns / steps,
        show: format.duration,
      },
      figure("mean_ns", "Mean", format.duration),
      figure("min_ns", "Least", format.duration),
      figure("max_ns", "Most", format.duration),
      figure("bus_bytes_per_s", "Bus bandwidth", format.bandwidth, "bus-bandwidth"),
      figure("best_bus_bytes_per_s", "of the shortest", format.bandwidth, "bus-bandwidth"),
    ],
  });
}

function hostCollectives(found) {
  return table({
    id: "collectives",
    caption: "Collectives on the host",
    rows: found.host_collectives,
    columns: [
      {
        key: "name",
        title: "Collective on the host",
        kind: "text",
        code: true,
        csv: "collective",
        value: (row) => row.name,
      },
      { key: "calls", title: "Calls", kind: "number", csv: "calls", value: (row) => row.calls, show: format.count },
      {
        key: "total",
        title: "Time",
        kind: "number",
        csv: "total_ns",
        value: (row) => row.total_ns,
        show: format.duration,
      },
    ],
  });
}
