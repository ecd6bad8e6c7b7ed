// The compilations of a fit: when they ran, the functions, the reasons to compile again, and graph breaks.

import * as column from "../../components/column.js";
import { facts, section, stack } from "../../components/parts.js";
import { table, tableSection } from "../../components/table.js";
import * as format from "../../text/format.js";

const MOMENTS = [
  ["before_ns", "before training", "runtime_alloc"],
  ["first_step_ns", "first step", "backward"],
  ["step_ns", "later steps", "forward"],
  ["between_ns", "between steps", "validation"],
];

/** The compilations by torch.compile. */
export function compilation(report) {
  const moments = MOMENTS.filter(([key]) => report[key] > 0);
  const { cache_hits: hits, cache_misses: misses } = report;
  const functions = report.frames.map((frame) => ({ ...frame, name: name(frame), breaks: frame.breaks || null }));
  const summary = section(
    "Compilation",
    {
      definition: "compilation",
      aside: `${format.duration(report.time_ns)} in all · ${format.countOf(report.compilations, "compilation")}`,
    },
    stack(
      moments.map(([key, label, color]) => ({
        label,
        value: report[key],
        color,
        text: `${format.duration(report[key])}, ${format.share(report[key] / report.time_ns)}`,
      })),
      { title: "Time of compilations", total: report.time_ns },
    ),
    facts([
      report.fit_ns ? ["Share of the fit", format.share(report.time_ns / report.fit_ns)] : null,
      report.backend_ns === null ? null : ["In the backend", format.duration(report.backend_ns)],
      report.recompilations
        ? ["Recompilations", `${format.count(report.recompilations)}, ${format.duration(report.recompile_ns)}`]
        : null,
      hits || misses ? ["In Inductor's cache", `${format.count(hits)} of ${format.countOf(hits + misses, "graph")}`] : null,
      report.check_ns_per_step === null
        ? null
        : ["Guard checks", `${format.duration(report.check_ns_per_step)} per recorded step`],
      report.recorded_ns_per_step
        ? ["Compilation in the recording", `${format.duration(report.recorded_ns_per_step)} per step`]
        : null,
    ]),
    table({
      id: "compiled-functions",
      caption: "Compiled functions",
      rows: functions,
      columns: column.filled(functions, [
        column.text("name", "Function", { code: true }),
        column.text("module", "Modules"),
        column.time("time_ns", "Time", { csv: "time_ns" }),
        column.time("backend_ns", "Backend", { csv: "backend_ns", definition: "backend-time" }),
        column.count("compilations", "Versions"),
        column.count("breaks", "Graph breaks", { definition: "graph-break" }),
        column.count("guards", "Guards", { definition: "guard" }),
        column.time("check_ns_per_step", "Checks per step", { csv: "check_ns_per_step", definition: "guard-checks" }),
      ]),
    }),
  );
  return [summary, recompilations(report), breaks(report), skipped(report)];
}

function recompilations(report) {
  const rows = report.frames.flatMap((frame) =>
    frame.recompilations.map((group) => ({ ...group, name: name(frame), steps: steps(group) })),
  );
  if (rows.length === 0) return null;
  return tableSection("Recompilations", {
    definition: "recompilation",
    id: "recompilations",
    rows: rows.sort((a, b) => b.time_ns - a.time_ns),
    columns: [
      column.text("name", "Function", { code: true }),
      column.text("cause", "Cause"),
      column.text("guard", "Failed guard", { definition: "guard" }),
      column.count("count", "Count"),
      column.time("time_ns", "Time", { csv: "time_ns" }),
      column.text("steps", "Steps"),
    ],
  });
}

function breaks(report) {
  if (report.breaks.length === 0) return null;
  return tableSection("Graph breaks", {
    definition: "graph-break",
    id: "graph-breaks",
    rows: report.breaks.map((each) => ({ ...each, place: place(each.file, each.line) })),
    columns: [
      column.text("place", "Line", { code: true }),
      column.text("code", "Code", { code: true }),
      column.text("reason", "Reason"),
      column.count("compilations", "Compilations"),
      column.number("calls_per_step", "Per step"),
    ],
  });
}

function skipped(report) {
  if (report.skipped_graphs.length === 0) return null;
  return tableSection("Without a CUDA graph", {
    definition: "skipped-cuda-graph",
    id: "skipped-graphs",
    rows: report.skipped_graphs.map((each) => ({ ...each, names: each.functions.join(", ") })),
    columns: [
      column.text("reason", "Reason"),
      column.count("count", "Graphs"),
      column.text("names", "Functions", { code: true }),
    ],
  });
}

const place = (file, line) => (file ? `${file.split(/[\\/]/).pop()}:${line}` : "unknown");

function name(frame) {
  const called = frame.function || "a function";
  return frame.resumed_at === null
    ? `${called} (${place(frame.file, frame.line)})`
    : `${called} after ${place(frame.file, frame.resumed_at)}`;
}

function steps({ first_step: first, last_step: last }) {
  if (first === null) return "before training";
  return first === last ? format.count(first) : `${format.count(first)} to ${format.count(last)}`;
}
