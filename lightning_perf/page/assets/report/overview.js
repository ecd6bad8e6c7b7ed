// The view "Overview": the verdict first, then its evidence and the largest parts of the step.

import { chartAndTable, notes, section, tiles } from "../components/parts.js";
import { h } from "../core/dom.js";
import * as format from "../text/format.js";
import { label } from "../text/labels.js";
import { arithmetic } from "./sections/arithmetic.js";
import { capturesPart } from "./sections/captures.js";
import { findingsList, heldBackList } from "./sections/findings.js";
import { fitTime } from "./sections/fit_time.js";
import { stepTimes } from "./sections/step_times.js";
import { breakdown, phases, steps } from "./sections/steps.js";
import { trustLine, windowsPart } from "./sections/trust.js";

export const overview = { id: "overview", title: "Overview", kinds: ["run", "trace"], render };

function render({ report, rank }) {
  return [
    verdict(report),
    notes(report.notes),
    rank && summary(report, rank),
    rank && chartAndTable(steps(rank), breakdown(rank)),
    report.findings.length ? section("Findings", { definition: "finding" }, findingsList(report)) : null,
    report.fit_findings?.length
      ? section(
          "Findings of the whole fit",
          { definition: "time-of-the-whole-fit" },
          findingsList({ ...report, findings: report.fit_findings, first: report.findings.length + 1 }),
        )
      : null,
    report.held_back?.length
      ? section("Held back", { definition: "held-back" }, heldBackList(report.held_back))
      : null,
    rank && [phases(rank), arithmetic(rank)],
    capturesPart(report.captures),
    report.fit_time && fitTime(report.fit_time),
    report.step_times && stepTimes(report.step_times),
    windowsPart(report.trust),
    sources(report),
  ];
}

function verdict({ verdict: { where, why, next } }) {
  const row = (name, text, kind) => [h("dt", {}, name), h("dd", { class: kind }, text)];
  return h(
    "section",
    { class: "part", "aria-label": "Verdict" },
    h("dl", { class: "verdict" }, row("Where", where), row("Why", why), row("Next", next, "next")),
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
  const metadata = rank.metadata.devices.find((item) => item.ordinal === device[0]?.ordinal);
  const peak = memory?.devices.find((item) => item.device !== null);
  const facts = [
    times.has_device ? used.join(", ") : host(rank.metadata.processor),
    times.has_device && metadata?.compute_major != null
      ? `compute capability ${metadata.compute_major}.${metadata.compute_minor ?? 0}`
      : null,
    rank.metadata.world_size > 1
      ? `${format.countOf(report.ranks.length, "rank")} of ${rank.metadata.world_size}`
      : null,
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
      {
        label: "SM efficiency",
        value: format.share(device[0]?.sm_efficiency),
        note: each,
        definition: "sm-efficiency",
      },
      { label: "Occupancy", value: format.share(device[0]?.occupancy), note: each, definition: "occupancy" },
      {
        label: "Tensor Cores",
        value: format.share(formats?.tensor_core_share),
        note: "of compute",
        definition: "tensor-cores",
      },
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
        definition: "throughput",
      },
    ]),
    efficiency && efficiency.mfu === null && efficiency.mfu_missing && times.has_device
      ? h("p", { class: "aside" }, `No MFU: ${efficiency.mfu_missing}.`)
      : null,
    report.trust ? trustLine(report.trust) : null,
  );
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
