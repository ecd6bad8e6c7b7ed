// The cost of communication for one rank.

import * as column from "../../components/column.js";
import { section, tiles, timeStack } from "../../components/parts.js";
import { table } from "../../components/table.js";
import { h } from "../../core/dom.js";
import * as format from "../../text/format.js";
import { per } from "../../text/labels.js";

/** Collectives of a rank, and how much of them compute hides. */
export function communication(rank, several) {
  const { communication: found } = rank;
  const steps = Math.max(rank.breakdown.averaged_steps, 1);
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
              label: "Overlapped",
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
          timeStack(
            [
              { label: "overlapped", value: found.overlapped_ns, color: "overlapped" },
              { label: "exposed", value: found.exposed_ns, color: "communication" },
            ],
            steps,
            { title: "Communication" },
          ),
          sums(found.collectives),
        ]
      : null,
    found.collectives.length ? collectives(found, steps) : hostCollectives(found, steps),
  );
}

// The data that each collective sends, with all its sizes together; null if no size is recorded.
function sums(rows) {
  const found = new Map();
  for (const row of rows.filter((item) => item.bytes !== null)) {
    const sum = found.get(row.name) ?? { bytes: 0, calls: 0 };
    found.set(row.name, { bytes: sum.bytes + row.bytes * row.calls, calls: sum.calls + row.calls });
  }
  const texts = [...found].map(
    ([name, { bytes, calls }]) => `${name} ${format.bytes(bytes)} (${format.count(bytes)} bytes) in ${format.countOf(calls, "call")}`,
  );
  return texts.length ? h("p", { class: "aside" }, `Sent in all averaged steps: ${texts.join(", ")}.`) : null;
}

function collectives(found, steps) {
  return table({
    id: "collectives",
    caption: "Collectives by cost",
    rows: found.collectives,
    columns: column.filled(found.collectives, [
      column.text("collective", "Collective", {
        code: true,
        value: (row) => `${row.name}${row.dtype ? ` ${row.dtype}` : ""}`,
      }),
      column.text("group", "Group", {
        value: (row) => (row.group === null ? null : `${row.group}${row.ranks ? `, ${row.ranks} ranks` : ""}`),
      }),
      column.bytes("bytes", "Size"),
      column.perStep(steps, column.count("calls", "Calls")),
      column.perStep(
        steps,
        column.bytes("sent_bytes", "Sent", { value: (row) => (row.bytes === null ? null : row.bytes * row.calls) }),
      ),
      column.perStep(steps, column.time("total_ns", "Time")),
      column.time("mean_ns", "Mean"),
      column.time("min_ns", "Minimum"),
      column.time("max_ns", "Maximum"),
      bandwidth("algorithm_bytes_per_s", "Bandwidth", "algorithm-bandwidth"),
      bandwidth("bus_bytes_per_s", "Bus bandwidth"),
      bandwidth("best_bus_bytes_per_s", "of the shortest"),
    ]),
  });
}

function bandwidth(key, title, definition = "bus-bandwidth") {
  return column.number(key, title, { show: format.bandwidth, definition });
}

function hostCollectives(found, steps) {
  return table({
    id: "collectives",
    caption: "Collectives on the host",
    rows: found.host_collectives,
    columns: [
      column.text("name", "Collective on the host", { code: true, csv: "collective" }),
      column.perStep(steps, column.count("calls", "Calls")),
      column.perStep(steps, column.time("total_ns", "Time")),
    ],
  });
}
