// The view "Overview": the verdict first, then its evidence and the largest parts of the step.

import { part } from "../components/blocks.js";
import { suggestion } from "../components/copy.js";
import { chartAndTable, facts, notes, section, tiles } from "../components/parts.js";
import { h } from "../core/dom.js";
import * as format from "../text/format.js";
import { units } from "../text/vendor.js";
import { arithmetic } from "./sections/arithmetic.js";
import { capturesPart } from "./sections/captures.js";
import { firstFinding, heldBackList, otherFindings } from "./sections/findings.js";
import { compilationBar, fitBar } from "./sections/fit_time.js";
import { breakdown, phases, steps } from "./sections/steps.js";

export const overview = { id: "overview", title: "Overview", kinds: ["run", "trace"], render };

function render(context) {
  const { report, rank } = context;
  return [
    verdict(report),
    notes(report.notes),
    rank && summary(report, rank),
    report.findings.length > 1
      ? section("More findings", { definition: "finding" }, otherFindings(report, report.findings.slice(1), 2))
      : null,
    report.fit_findings?.length
      ? section(
          "Findings of the whole fit",
          { definition: "time-of-the-whole-fit" },
          otherFindings(report, report.fit_findings, report.findings.length + 1),
        )
      : null,
    rank && (rank.breakdown.steps.length > 1 ? chartAndTable(steps(rank), breakdown(rank)) : breakdown(rank)),
    report.held_back?.length
      ? section("Held back", { definition: "held-back" }, heldBackList(report.held_back))
      : null,
    rank && [phases(rank), arithmetic(rank)],
    part(report, `language_model.${report.ranks.indexOf(rank)}`),
    capturesPart(report.captures),
    report.fit_time && part(report, "fit_time", { before: fitBar(report.fit_time) }),
    report.compilation && part(report, "compilation", { before: compilationBar(report.compilation) }),
    part(report, "step_times"),
    part(report, "windows"),
    notRecorded(context),
    sources(report),
  ];
}

// The verdict. If it rests on the first finding, this section shows it in full, without repeating its text.
function verdict(report) {
  const { where, why, next } = report.verdict;
  const row = (name, text, kind) => (text ? [h("dt", {}, name), h("dd", { class: kind }, text)] : null);
  const top = report.findings[0]?.title;
  const at = top ? why.indexOf(top) : -1;
  return h(
    "section",
    { class: "part", "aria-label": "Verdict" },
    at < 0
      ? h("dl", { class: "verdict" }, row("Where", where), row("Why", why), row("Next", next, "next"))
      : [h("dl", { class: "verdict" }, row("Where", where), row("Why", why.slice(0, at).trim())), firstFinding(report)],
  );
}

/** The views without data, with the reason and how to record it. */
function notRecorded(context) {
  const empty = context.empty.filter(({ view }) => view.id !== "compare");
  if (empty.length === 0) return null;
  return section(
    `Not recorded (${empty.length})`,
    { aside: "what to record to see these views" },
    facts(empty.map(({ view, reason }) => [view.title, suggestion(reason)])),
  );
}

function host(processor) {
  if (!processor?.name) return "Recorded on the host only";
  const instructions = processor.bf16?.length ? ` with ${processor.bf16.join(", ")}` : "";
  return `Recorded on the host only: ${processor.name}${instructions}`;
}

function summary(report, rank) {
  const { breakdown: times, efficiency, arithmetic: formats, memory } = rank;
  const used = [...new Set(rank.metadata.devices.map((device) => device.name).filter(Boolean))];
  const device = times.has_device ? (efficiency?.devices ?? []) : [];
  const each = device.length > 1 ? `device ${device[0].ordinal} of ${device.length}` : null;
  const described = rank.metadata.devices;
  // Under HIP, kernels can have ordinals without a described device.
  const metadata = described.find((item) => item.ordinal === device[0]?.ordinal) ?? (used.length === 1 ? described[0] : null);
  const peak = memory?.devices.find((item) => item.device !== null);
  const { cores, unit, architecture } = units(rank);
  const recorded = [
    times.has_device ? used.join(", ") : host(rank.metadata.processor),
    times.has_device && metadata ? architecture(metadata) : null,
    rank.metadata.world_size > 1
      ? `${format.countOf(report.ranks.length, "rank")} of ${rank.metadata.world_size}`
      : null,
    times.marked ? format.countOf(times.steps.length, "recorded step") : "no step marks",
    `${format.duration(rank.recording_ns)} recorded`,
  ];
  return h(
    "section",
    { class: "summary", "aria-label": "Summary" },
    h("p", { class: "aside" }, recorded.filter(Boolean).join(" · ")),
    tiles([
      {
        label: times.marked ? "Step time" : "Recording",
        value: format.duration(times.wall.mean_ns),
        note: times.wall.sd_ns === null ? null : `± ${format.duration(times.wall.sd_ns)}`,
        definition: "step",
      },
      { label: "Device busy", value: format.share(device[0]?.busy), note: each, definition: "busy" },
      {
        label: `${unit} efficiency`,
        value: format.share(device[0]?.sm_efficiency),
        note: each,
        definition: "sm-efficiency",
      },
      { label: "Occupancy", value: format.share(device[0]?.occupancy), note: each, definition: "occupancy" },
      { label: cores, definition: "tensor-cores", ...tensorCores(formats) },
      {
        label: "FLOP/s",
        value: format.flopRate(efficiency?.flops_per_s),
        note: coverage(efficiency),
        definition: "flops",
      },
      { label: "MFU", value: format.share(efficiency?.mfu), definition: "mfu" },
      {
        label: "Peak memory",
        value: format.bytes(peak?.peak_allocated_bytes),
        note: peak?.total_bytes ? `of ${format.bytes(peak.total_bytes)}` : peak?.absolute ? null : "at least",
        definition: "peak-memory",
      },
      {
        label: "Throughput",
        value: format.rate(report.step_times?.samples_per_second, "samples"),
        note: report.step_times?.tokens_per_second ? format.rate(report.step_times.tokens_per_second, "tokens") : null,
        definition: "throughput",
      },
    ]),
    efficiency && efficiency.mfu === null && efficiency.mfu_missing && times.has_device
      ? h("p", { class: "aside" }, `No MFU: ${efficiency.mfu_missing}.`)
      : null,
    part(report, "trust"),
  );
}

// The share of compute on Tensor Cores. Kernels count as unknown if their names do not show whether they use them.
function tensorCores(formats) {
  if (!formats?.compute_ns || formats.tensor_core_share === null) return { value: null };
  const unknown = formats.tensor_core_unknown_ns / formats.compute_ns;
  if (unknown === 0) return { value: format.share(formats.tensor_core_share), note: "of compute" };
  if (unknown > 0.5) return { value: "unknown", note: `${format.share(formats.tensor_core_share)} of compute is known to run on them` };
  return { value: format.share(formats.tensor_core_share), note: `of compute, ${format.share(unknown)} unknown` };
}

function coverage(efficiency) {
  const covered = efficiency?.flops_coverage;
  return covered === null || covered === undefined || covered >= 1
    ? null
    : `covers ${format.share(covered)} of product time`;
}

function sources(report) {
  if (report.sources.length === 0) return null;
  return section(
    "Traces",
    { aside: `made by lightning_perf ${report.tool_version}` },
    h(
      "ul",
      {},
      report.sources.map((source) => h("li", {}, h("code", {}, source))),
    ),
  );
}
