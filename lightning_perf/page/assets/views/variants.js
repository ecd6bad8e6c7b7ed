// Each variant in detail: calls, outputs, cold start, and the settings that decided them.

import { h } from "../dom.js";
import * as format from "../format.js";
import { cellChoice, cellText, chosenCell, latencyOf } from "../limits.js";
import { facts, missing, section } from "../parts.js";
import { table } from "../table.js";

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
  const rows = report.rows.filter((row) => latencyOf(row, cell));
  const time = (key, title) => ({
    ...number(key, title, (row) => latencyOf(row, cell)[key]),
    show: (value) => format.duration(value === null ? null : value * 1e6),
  });
  const noise = cell.noise.value === null ? null : `the original measured twice: ${range(cell.noise)}`;
  return section(
    "Calls",
    { definition: "latency", aside: [cellText(cell), noise].filter(Boolean).join("; ") },
    h("div", { class: "controls" }, cellChoice(report)),
    table({
      id: "calls",
      caption: "Latency of calls",
      rows,
      columns: [
        variantName(),
        { ...number("calls", "Calls", (row) => latencyOf(row, cell).calls), show: format.count },
        time("p10_ms", "p10"),
        time("p50_ms", "p50"),
        time("p90_ms", "p90"),
        time("p99_ms", "p99"),
        report.machine.device_type === "cpu" ? time("cpu_ms", "CPU time") : time("device_ms", "Device time"),
        {
          ...number("speedup", "Speed-up", (row) => latencyOf(row, cell).speedup?.value ?? null),
          show: (_, row) => (latencyOf(row, cell).speedup ? range(latencyOf(row, cell).speedup) : format.ratio(1)),
          definition: "speed-up",
        },
        {
          ...number("throughput", "Inputs/s", (row) => latencyOf(row, cell).throughput),
          show: (value) => format.count(value),
        },
      ],
    }),
  );
}

function outputs({ rows: all }) {
  const rows = all.filter((row) => row.reload);
  if (rows.length === 0) return null;
  return section(
    "Outputs",
    { definition: "accuracy-of-a-variant", aside: "with 95 % intervals" },
    table({
      id: "outputs",
      caption: "Outputs of the variants",
      rows,
      columns: [
        variantName(),
        {
          ...number("right", "Right", (row) => row.accuracy?.correct ?? null),
          show: (value, row) => (row.accuracy ? `${value} of ${row.accuracy.n}` : format.NOT_AVAILABLE),
        },
        {
          ...number("low", "Accuracy", (row) => row.accuracy?.low ?? null),
          show: (_, row) =>
            row.accuracy
              ? `${format.share(row.accuracy.low)} – ${format.share(row.accuracy.high)}`
              : format.NOT_AVAILABLE,
        },
        {
          ...number("drop_high", "Drop", (row) => row.accuracy?.drop_high_points ?? null),
          show: (value, row) =>
            value === null ? format.NOT_AVAILABLE : `${points(row.accuracy.drop_low_points)} to ${points(value)} pt`,
        },
        {
          ...number("agreement", "Same class", (row) => row.accuracy?.agreement ?? null),
          show: format.share,
          definition: "agreement",
        },
        {
          ...number("error", "Output error", (row) => row.output_error),
          show: (value) => (value === null ? format.NOT_AVAILABLE : value.toExponential(1)),
          definition: "output-error",
        },
        {
          ...number("reload", "After loading", (row) => row.reload.max_difference),
          show: (value, row) => (value <= row.reload.tolerance ? "the same" : `differs by ${value.toExponential(1)}`),
          definition: "after-loading",
        },
      ],
    }),
  );
}

function coldStart(report) {
  const rows = report.rows.filter((row) => row.cold);
  if (rows.length === 0) return null;
  const time = (key, title) => ({
    ...number(key, title, (row) => row.cold[key]),
    show: (value) => format.duration(value * 1e6),
  });
  return section(
    "Building and cold start",
    { definition: "cold-start", aside: "in a fresh process" },
    table({
      id: "cold",
      caption: "Building and cold start",
      rows,
      columns: [
        variantName(),
        { ...number("parameters", "Parameters", (row) => row.parameters), show: format.count },
        { ...number("size", "Files", (row) => row.size_bytes), show: format.bytes },
        { ...number("packed", "Packed", (row) => row.packed_bytes), show: format.bytes },
        {
          ...number("build", "Build", (row) => row.build_s),
          show: (value) => format.duration(value === null ? null : value * 1e9),
        },
        time("load_ms", "Load"),
        time("first_call_ms", "First call"),
        { ...number("rss", "Memory", (row) => row.cold.peak_rss_bytes), show: format.bytes },
        ...(report.machine.device_type === "cpu"
          ? []
          : [{ ...number("device", "On device", (row) => row.cold.peak_device_bytes), show: format.bytes }]),
      ],
    }),
  );
}

function how({ rows }) {
  return section(
    "How each was made",
    {},
    table({
      id: "how",
      caption: "How each variant was made",
      rows,
      columns: [
        variantName(),
        text("summary", "What it does", (row) => row.summary),
        text("settings", "Settings", (row) =>
          Object.entries(row.provenance ?? {})
            .map(([name, value]) => `${name} ${value}`)
            .join(", "),
        ),
        text("reason", "Not measured because", (row) => row.reason),
      ].filter((column) => column.key !== "reason" || rows.some((row) => row.reason !== null)),
    }),
  );
}

function machine({ machine: found, effort, method_version: method }) {
  const versions = Object.entries(found.versions).map(([name, version]) => `${name} ${version}`);
  const loads = [found.load_before, found.load_after];
  return section(
    "Where and how it was measured",
    {},
    facts([
      ["Device", found.device],
      ["Processor", `${found.cpu}, ${found.cpus} usable`],
      ["System", found.platform],
      ["Load average", loads.includes(null) ? null : `${loads[0].toFixed(2)} before, ${loads[1].toFixed(2)} after`],
      ["Versions", versions.join(", ")],
      [
        "Effort",
        `${format.digits(effort.seconds)} s a variant, batch size and number of threads, in ${effort.rounds} rounds; method ${method}`,
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

function variantName() {
  return text("variant", "Variant", (row) => row.variant);
}

function text(key, title, value) {
  return { key, title, kind: "text", csv: key, value };
}

function number(key, title, value) {
  return { key, title, kind: "number", csv: key, value };
}
