// The answer first: the verdict, what it rests on, and the largest parts.

import { chart, chartText, ink } from "../chart.js";
import { h } from "../dom.js";
import { findingsList } from "../findings.js";
import * as format from "../format.js";
import { chartAndTable, notice, section, stack, swatch, tiles } from "../parts.js";
import { table } from "../table.js";
import { trustLine, windowsPart } from "../trust.js";
import { arithmeticLabel, label, per } from "../words.js";

export const overview = { id: "overview", title: "Overview", kinds: ["run", "trace"], render };

function render({ report, rank }) {
  return [
    verdict(report),
    report.notes.map((note) => notice(note)),
    rank && summary(report, rank),
    rank && chartAndTable(steps(rank), breakdown(rank)),
    report.findings.length ? section("Findings", { definition: "finding" }, findingsList(report.findings, rank)) : null,
    rank && [phases(rank), arithmetic(rank)],
    report.step_times && stepTimes(report.step_times),
    windowsPart(report.trust),
    sources(report),
  ];
}

function verdict({ verdict: { where, why, next } }) {
  const row = (name, text, kind) => [h("dt", {}, name), h("dd", { class: kind }, text)];
  return h("section", { class: "part", "aria-label": "Verdict" }, h("dl", { class: "verdict" }, row("Where", where), row("Why", why), row("Next", next, "next")));
}

function summary(report, rank) {
  const { breakdown: times, efficiency, arithmetic: formats, memory } = rank;
  const used = [...new Set(rank.metadata.devices.map((device) => device.name).filter(Boolean))];
  const device = times.has_device ? efficiency?.devices ?? [] : [];
  const each = device.length > 1 ? `device ${device[0].ordinal} of ${device.length}` : null;
  const peak = memory?.devices.find((item) => item.device !== null);
  const facts = [
    times.has_device ? used.join(", ") : "Recorded on the host alone",
    rank.metadata.world_size > 1 ? `${format.countOf(report.ranks.length, "rank")} of ${rank.metadata.world_size}` : null,
    times.marked ? format.countOf(times.steps.length, "recorded step") : "no step marks",
    `${format.duration(rank.recording_ns)} recorded`,
  ];
  return h(
    "section",
    { class: "summary", "aria-label": "Summary" },
    h("p", { class: "aside" }, facts.filter(Boolean).join(" · ")),
    tiles([
      {
        label: times.marked ? "Step time" : "Recording",
        value: format.duration(times.wall.mean_ns),
        note: times.wall.sd_ns === null ? null : `± ${format.duration(times.wall.sd_ns)}`,
        definition: "step",
      },
      { label: "Device busy", value: format.share(device[0]?.busy), note: each, definition: "busy" },
      { label: "SM efficiency", value: format.share(device[0]?.sm_efficiency), note: each, definition: "sm-efficiency" },
      { label: "Occupancy", value: format.share(device[0]?.occupancy), note: each, definition: "occupancy" },
      { label: "Tensor Cores", value: format.share(formats?.tensor_core_share), note: "of compute", definition: "tensor-cores" },
      { label: "FLOP/s", value: format.flopRate(efficiency?.flops_per_s), note: coverage(efficiency), definition: "flops" },
      { label: "MFU", value: format.share(efficiency?.mfu), definition: "mfu" },
      {
        label: "Peak memory",
        value: format.bytes(peak?.peak_allocated_bytes),
        note: peak?.total_bytes ? `of ${format.bytes(peak.total_bytes)}` : peak?.absolute ? null : "at least",
        definition: "peak-memory",
      },
      { label: "Throughput", value: format.rate(report.step_times?.samples_per_second, "samples"), definition: "throughput" },
    ]),
    efficiency && efficiency.mfu === null && efficiency.mfu_missing && times.has_device
      ? h("p", { class: "aside" }, `No MFU: ${efficiency.mfu_missing}.`)
      : null,
    report.trust ? trustLine(report.trust) : null,
  );
}

function coverage(efficiency) {
  const covered = efficiency?.flops_coverage;
  return covered === null || covered === undefined || covered >= 1 ? null : `counts ${format.share(covered)} of product time`;
}

function steps(rank) {
  const { breakdown: times } = rank;
  const rows = times.categories.filter((row) => row.parent === null && row.per_step_ns?.some((time) => time > 0));
  const names = times.steps.map((step) => `${step.number}${step.complete ? "" : " (cut off)"}`);
  const draw = () => ({
    data: rows.map((row) => ({
      type: "bar",
      name: label("categories", row.name),
      x: names.map(chartText),
      y: row.per_step_ns.map((time) => time / 1e6),
      customdata: row.per_step_ns.map(format.duration),
      hovertemplate: "%{fullData.name}: %{customdata}<extra>step %{x}</extra>",
      marker: { color: ink(row.name) },
    })),
    layout: { barmode: "stack", showlegend: false, xaxis: { title: "step", type: "category" }, yaxis: { title: "ms" } },
  });
  const outliers = times.outliers.map((step) =>
    notice(`Step ${step.number} stands apart: ${format.duration(step.wall_ns)}, ${format.change(step.excess_ns)}, mostly in ${label("categories", step.category)}.`),
  );
  return section(
    times.marked ? "Time of each step" : "Time of the recording",
    { definition: "step" },
    chart({ title: "Step time by category, a bar a step; the table beside it has the means.", draw, height: 400 }),
    outliers,
  );
}

function breakdown(rank) {
  const { breakdown: times } = rank;
  const rows = times.categories.filter((row) => row.mean_ns > 0);
  const spread = times.averaged_steps > 1;
  return section(
    "Breakdown",
    { definition: "step-time-breakdown", aside: times.marked ? `mean of ${format.countOf(times.averaged_steps, "step")}` : "the whole recording" },
    table({
      id: "breakdown",
      caption: "Step time by category",
      searchable: false,
      rows,
      columns: [
        {
          key: "category",
          title: "Category",
          kind: "text",
          csv: "category",
          value: (row) => label("categories", row.name),
          show: (text, row) => (row.parent === null ? h("span", { class: "with-swatch" }, swatch(row.name), text) : h("span", { class: "sub" }, text)),
          definition: "step-time-breakdown",
        },
        { key: "time", title: "Time", kind: "number", csv: "mean_ns", value: (row) => row.mean_ns, show: format.duration },
        { key: "share", title: "Share", kind: "number", csv: "share", value: (row) => row.share, show: format.share, bar: (row) => (row.parent === null ? row.share : null) },
        ...(spread
          ? [{ key: "range", title: "Least – most", kind: "number", csv: "max_ns", value: (row) => row.max_ns, show: (_, row) => `${format.duration(row.min_ns)} – ${format.duration(row.max_ns)}` }]
          : []),
      ],
    }),
  );
}

function phases(rank) {
  const { phases: crossed, breakdown: times } = rank;
  const wall = times.wall.mean_ns;
  const rows = crossed.phases.filter((phase) => phase.mean_ns > 0);
  const used = crossed.categories
    .map((name, i) => ({ name, i }))
    .filter(({ i }) => crossed.phases.some((phase) => phase.category_mean_ns[i] > 0));
  return section(
    "Phases",
    { definition: "phase-category", aside: per(rank) },
    stack(
      rows.map((phase) => ({ label: label("phases", phase.name), value: phase.mean_ns, color: phase.name, text: `${format.duration(phase.mean_ns)} ${crossed.truncated ? "" : format.share(phase.share)}` })),
      { title: "Time by phase" },
    ),
    h(
      "div",
      { class: "heat" },
      table({
        id: "phases",
        caption: "Time by phase and category",
        rows,
        columns: [
          { key: "phase", title: "Phase", kind: "text", csv: "phase", value: (row) => label("phases", row.name) },
          { key: "time", title: "Time", kind: "number", csv: "mean_ns", value: (row) => row.mean_ns, show: format.duration },
          ...used.map(({ name, i }) => ({
            key: name,
            title: label("categories", name),
            kind: "number",
            csv: `${name}_ns`,
            value: (row) => row.category_mean_ns[i],
            show: (time) => (time ? format.duration(time) : format.NOT_AVAILABLE),
            bar: (row) => row.category_mean_ns[i] / wall,
          })),
        ],
      }),
    ),
  );
}

function arithmetic(rank) {
  const { arithmetic: formats } = rank;
  if (!formats?.compute_ns) return null;
  const steps = Math.max(formats.steps, 1);
  const rows = formats.rows.filter((row) => row.time_ns > 0);
  const told = (row) => [row.by_operator_ns ? "operator types" : null, row.by_name_ns ? "kernel name" : null].filter(Boolean).join(", ") || format.NOT_AVAILABLE;
  return section(
    "Arithmetic of device compute",
    { definition: "arithmetic", aside: per(rank) },
    stack(
      rows.map((row) => ({ label: arithmeticLabel(row.name), value: row.time_ns, color: row.name, text: format.duration(row.time_ns / steps) })),
      { title: "Device compute by arithmetic" },
    ),
    table({
      id: "arithmetic",
      caption: "Device compute by arithmetic",
      rows,
      columns: [
        { key: "name", title: "Arithmetic", kind: "text", csv: "arithmetic", value: (row) => arithmeticLabel(row.name) },
        { key: "time", title: "Time", kind: "number", csv: "time_ns_per_step", value: (row) => row.time_ns / steps, show: format.duration },
        { key: "share", title: "Share", kind: "number", csv: "share", value: (row) => row.share, show: format.share, bar: (row) => row.share },
        { key: "told", title: "Told by", kind: "text", csv: "told_by", value: told },
      ],
    }),
    formats.tensor_core_share === null ? null : h("p", {}, `On Tensor Cores: ${format.share(formats.tensor_core_share)} of compute time.`),
    formats.eligible_unused.map((unused) =>
      notice(
        `Not on Tensor Cores though a matrix product: ${format.duration(unused.time_ns / steps)} ${per(rank)} in ` +
          `${format.countOf(unused.kernels, "kernel")}, because ${label("reasons", unused.reason)} (${unused.operators.join(", ")}).`,
      ),
    ),
  );
}

function stepTimes(times) {
  const rows = [
    { name: "Step", mean: times.mean_ns, p50: times.p50_ns, p90: times.p90_ns, p99: times.p99_ns },
    { name: "Wait for data", mean: times.data_wait_mean_ns, p50: null, p90: times.data_wait_p90_ns, p99: null },
    ...(times.device_mean_ns === null ? [] : [{ name: "Device", mean: times.device_mean_ns, p50: null, p90: null, p99: null }]),
  ];
  const figure = (key, title) => ({ key, title, kind: "number", csv: `${key}_ns`, value: (row) => row[key], show: format.duration });
  const trend = (value, text) =>
    value !== null && Math.abs(value) >= 0.05 ? notice(`${text} ${format.share(Math.abs(value))} ${value > 0 ? "slower" : "faster"}.`) : null;
  return section(
    "Step times without the profiler",
    { definition: "step-timer", aside: `${format.countOf(times.steps, "step")}, ${format.share(times.data_wait_share)} waiting for data` },
    table({ id: "step-times", caption: "Step times by the always-on timer", rows, columns: [{ key: "name", title: "", kind: "text", csv: "what", value: (row) => row.name }, figure("mean", "Mean"), figure("p50", "p50"), figure("p90", "p90"), figure("p99", "p99")] }),
    times.only_profiled ? notice("Every step was profiled: these times include the profiler's own cost.") : null,
    trend(times.drift, "Against its first quarter, the last quarter of the run was"),
    trend(times.after_profiling, "Against the steps before, those after the profiled ones were"),
  );
}

function sources(report) {
  if (report.sources.length === 0) return null;
  return section(
    "Traces",
    { aside: `made by lightning_perf ${report.tool_version}` },
    h("ul", {}, report.sources.map((source) => h("li", { class: "path" }, h("code", {}, source)))),
  );
}
