// The view "Variants": calls, outputs, cold start and settings of each variant.

import * as column from "../components/column.js";
import { facts, missing, section } from "../components/parts.js";
import { table, tableSection } from "../components/table.js";
import { h } from "../core/dom.js";
import * as format from "../text/format.js";
import { cellChoice, cellText, chosenCell, latencyOf, recommendedFirst } from "./limits.js";

export const variants = { id: "variants", title: "Variants", kinds: ["inference"], render };

function render({ report }) {
  const cell = chosenCell(report);
  return [
    cell ? calls(report, cell) : missing("Nothing was measured."),
    outputs(report),
    coldStart(report),
    how(report),
    machine(report),
  ];
}

function calls(report, cell) {
  const rows = recommendedFirst(report, report.rows.filter((row) => latencyOf(row, cell)));
  const time = (key, title) => column.timeMs(key, title, { value: (row) => latencyOf(row, cell)[key] });
  const noise = cell.noise.value === null ? null : `two measurements of the original: ${range(cell.noise)}`;
  return section(
    "Calls",
    { definition: "latency", aside: [cellText(cell), noise].filter(Boolean).join("; ") },
    h("div", { class: "controls" }, cellChoice(report)),
    table({
      id: "calls",
      caption: "Latency of calls",
      rows,
      columns: [
        column.text("variant", "Variant"),
        column.count("calls", "Calls", { value: (row) => latencyOf(row, cell).calls }),
        time("p10_ms", "p10"),
        time("p50_ms", "p50"),
        time("p90_ms", "p90"),
        time("p99_ms", "p99"),
        report.machine.device_type === "cpu" ? time("cpu_ms", "CPU time") : time("device_ms", "Device time"),
        column.number("speedup", "Speed-up", {
          value: (row) => latencyOf(row, cell).speedup?.value ?? null,
          show: (_, row) => (latencyOf(row, cell).speedup ? range(latencyOf(row, cell).speedup) : format.ratio(1)),
          definition: "speed-up",
        }),
        column.count("throughput", "Inputs/s", { value: (row) => latencyOf(row, cell).throughput }),
      ],
    }),
  );
}

function outputs({ rows: all }) {
  const rows = all.filter((row) => row.reload);
  if (rows.length === 0) return null;
  return tableSection("Outputs", {
    definition: "accuracy-of-a-variant",
    aside: "with 95 % intervals",
    id: "outputs",
    caption: "Outputs of the variants",
    rows,
    columns: [
      column.text("variant", "Variant"),
      column.number("right", "Right", {
        value: (row) => row.accuracy?.correct ?? null,
        show: (value, row) => (row.accuracy ? `${value} of ${row.accuracy.n}` : format.NOT_AVAILABLE),
      }),
      column.number("low", "Accuracy", {
        value: (row) => row.accuracy?.low ?? null,
        show: (_, row) =>
          row.accuracy
            ? `${format.share(row.accuracy.low)} – ${format.share(row.accuracy.high)}`
            : format.NOT_AVAILABLE,
      }),
      column.number("drop_high", "Drop", {
        value: (row) => row.accuracy?.drop_high_points ?? null,
        show: (value, row) =>
          value === null ? format.NOT_AVAILABLE : `${points(row.accuracy.drop_low_points)} to ${points(value)} pt`,
      }),
      column.share("agreement", "Same class", {
        value: (row) => row.accuracy?.agreement ?? null,
        definition: "agreement",
      }),
      column.number("error", "Output error", {
        value: (row) => row.output_error,
        show: (value) => (value === null ? format.NOT_AVAILABLE : value.toExponential(1)),
        definition: "output-error",
      }),
      column.number("reload", "After loading", {
        value: (row) => row.reload.max_difference,
        show: (value, row) => (value <= row.reload.tolerance ? "the same" : `differs by ${value.toExponential(1)}`),
        definition: "after-loading",
      }),
    ],
  });
}

function coldStart(report) {
  const rows = report.rows.filter((row) => row.cold);
  if (rows.length === 0) return null;
  const time = (key, title) => column.timeMs(key, title, { value: (row) => row.cold[key] });
  return tableSection("Building and cold start", {
    definition: "cold-start",
    aside: "in a fresh process",
    id: "cold",
    rows,
    columns: [
      column.text("variant", "Variant"),
      column.count("parameters", "Parameters"),
      column.bytes("size_bytes", "Files"),
      column.bytes("packed_bytes", "Packed"),
      column.timeMs("build_ms", "Build", { value: (row) => (row.build_s === null ? null : row.build_s * 1000) }),
      time("load_ms", "Load"),
      time("first_call_ms", "First call"),
      column.bytes("rss", "Memory", { csv: "peak_rss_bytes", value: (row) => row.cold.peak_rss_bytes }),
      ...(report.machine.device_type === "cpu"
        ? []
        : [column.bytes("peak_device_bytes", "On device", { value: (row) => row.cold.peak_device_bytes })]),
    ],
  });
}

function how({ rows }) {
  return tableSection("Settings", {
    id: "how",
    caption: "Settings of each variant",
    rows,
    columns: column.filled(rows, [
      column.text("variant", "Variant"),
      column.text("summary", "Description"),
      column.text("settings", "Settings", {
        value: (row) =>
          Object.entries(row.provenance ?? {})
            .map(([name, value]) => `${name} ${value}`)
            .join(", "),
      }),
      column.text("reason", "Reason for no measurement"),
    ]),
  });
}

function machine({ machine: found, effort, method_version: method }) {
  const versions = Object.entries(found.versions).map(([name, version]) => `${name} ${version}`);
  const loads = [found.load_before, found.load_after];
  return section(
    "Machine and method",
    {},
    facts([
      ["Device", found.device],
      ["Processor", `${found.cpu}, ${found.cpus} usable`],
      ["System", found.platform],
      ["Load average", loads.includes(null) ? null : `${loads[0].toFixed(2)} before, ${loads[1].toFixed(2)} after`],
      ["Versions", versions.join(", ")],
      [
        "Effort",
        `${format.digits(effort.seconds)} s per variant, batch size and number of threads, in ${effort.rounds} rounds (method ${method})`,
      ],
    ]),
  );
}

function range({ value, low, high }) {
  return low === null ? format.ratio(value) : `${format.ratio(value)} (${format.digits(low)} – ${format.digits(high)})`;
}

function points(value) {
  return value.toFixed(2).replace("-", "−");
}
