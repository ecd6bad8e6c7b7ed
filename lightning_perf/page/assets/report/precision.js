// The view "Precision": loss scale, overflows, underflow by layer, drift from FP32, and the cost of casts.

import * as column from "../components/column.js";
import { columns, facts, missing, notice, section, tiles } from "../components/parts.js";
import { table } from "../components/table.js";
import { h } from "../core/dom.js";
import * as format from "../text/format.js";
import { arithmeticLabel, per } from "../text/labels.js";
import { forecast } from "./sections/forecast.js";
import { fp8Layers } from "./sections/fp8_layers.js";
import { lossScale } from "./sections/loss_scale.js";
import { driftChart, lossChart } from "./sections/precision_drift.js";
import { shadow } from "./sections/shadow.js";
import { underflow } from "./sections/underflow.js";

export const precision = { id: "precision", title: "Precision", kinds: ["run", "trace"], missing: reason, render };

const NO_RECORD =
  "This run has no record of its precision, because a trace does not contain the loss scale or gradients. Train with " +
  "`PerfCallback(precision=…)` and analyze the run's folder to see the loss scale, overflows and underflow by layer.";

function reason({ report, rank }) {
  return report.precision || report.forecast || report.shadow || report.fp8 || rank?.autocast?.count || rank?.amp_gain ? null : NO_RECORD;
}

function render({ report, rank }) {
  const found = report.precision;
  return [
    found
      ? [
          found.bad_run ? badRun(found.bad_run) : null,
          found.mistakes?.length ? mistakes(found.mistakes) : null,
          setting(found.setting),
          found.loss_scale && lossScale(found.loss_scale),
          found.underflow && underflow(found.underflow),
          found.numerics && numerics(found.numerics),
        ]
      : report.forecast || report.shadow || report.fp8
        ? null
        : missing(NO_RECORD),
    report.fp8 ? fp8Layers(report.fp8) : null,
    report.shadow ? shadow(report.shadow) : null,
    report.forecast ? forecast(report.forecast) : null,
    rank?.amp_gain ? gain(rank) : null,
    rank?.autocast ? casts(rank) : null,
  ];
}

function badRun(found) {
  const loss = (value) => (value === null ? "NaN or infinite" : value.toPrecision(4));
  return section(
    "Diagnosis",
    {},
    notice(`The run went wrong in step ${found.step}: lightning-perf explain RUN_FOLDER prints the diagnosis.`, "high"),
    facts([
      found.operator && ["First operator with inf or NaN", `${found.operator} in ${found.layer || "training_step"}`],
      found.line && ["Line", found.line],
      [`Loss in ${found.precision}`, loss(found.loss)],
      found.fp32_finite !== null && ["Loss of the same batch in FP32", loss(found.fp32_loss)],
      found.keep_fp32.length > 0 && ["Layers to keep in FP32", found.keep_fp32.join(", ")],
      found.cured_loss !== null && ["Loss with these layers in FP32", loss(found.cured_loss)],
    ]),
  );
}

function mistakes(found) {
  const place = ({ layer, line }) =>
    `${layer ? ` in ${layer}` : ""}${line ? (layer ? ` (${line})` : ` in ${line}`) : ""}`;
  return section(
    "Mistakes",
    {},
    found.map((mistake) =>
      notice(
        `${mistake.title}${place(mistake)}. ${mistake.evidence.join(" ")} Fix: ${mistake.action} ` +
          `More: lightning-perf explain ${mistake.kind}`,
        mistake.severity === "high" ? "high" : "",
      ),
    ),
  );
}

function setting(found) {
  const { fp32 } = found;
  const tf32 = !fp32.device_has_tf32
    ? "the device has none"
    : `products ${fp32.tf32_matmul ? "on" : "off"}, convolutions ${fp32.tf32_convolution ? "on" : "off"}`;
  return section(
    "Setting",
    {},
    found.note ? notice(found.note) : null,
    facts([
      ["Precision", `${found.precision}${found.switched ? " (switched by the callback)" : ""}`],
      found.requested && found.requested !== found.precision && ["Requested", found.requested],
      ["TF32", tf32],
      found.weight_cache !== null && ["Autocast's weight cache", found.weight_cache ? "on" : "off"],
      found.keep_fp32.length > 0 && ["Kept in FP32", found.keep_fp32.join(", ")],
    ]),
  );
}

function numerics(drift) {
  const loss = (value) => (value === null ? "NaN or infinite" : value.toPrecision(4));
  const text =
    `After ${drift.mixed_losses.length} batches the loss is ${loss(drift.mixed_end)}, and ${loss(drift.fp32_end)} in FP32. ` +
    `Other seeds would give ${loss(drift.expected_low)} – ${loss(drift.expected_high)}: `;
  return section(
    "Compared with FP32",
    { definition: "seed-noise" },
    notice(
      `${text}${drift.beyond_seed_noise ? "beyond seed noise." : "within seed noise."}`,
      drift.beyond_seed_noise ? "high" : "good",
    ),
    columns(lossChart(drift), drift.layers.length ? driftChart(drift) : null),
  );
}

const PARTS = {
  products: "products and convolutions without Tensor Cores",
  "products on Tensor Cores": "products and convolutions in TF32",
  following: "kernels that read their results",
  fixed: "unchanged kernels",
  "in 16 bits": "kernels in 16 bits or fewer already",
};

function gain(rank) {
  const { amp_gain: found } = rank;
  const steps = Math.max(found.steps, 1);
  return section(
    "Predicted gain of mixed precision",
    {
      definition: "gain-of-mixed-precision",
      aside: found.device
        ? `by the peak rates of ${found.device}`
        : "by general factors, because the device's peak rates are not known",
    },
    h("p", {}, gainText(found, rank)),
    table({
      id: "gain",
      caption: "Parts of the compute time, now and in mixed precision",
      rows: found.parts,
      columns: [
        column.text("name", "Part", { csv: "part", value: ({ name }) => PARTS[name] ?? name }),
        column.perStep(steps, column.count("kernels", "Kernels")),
        column.perStep(steps, column.time("time_ns", "Now")),
        column.perStep(steps, column.time("fastest_ns", "Mixed, at best")),
        column.perStep(steps, column.time("slowest_ns", "Mixed, at worst")),
      ],
    }),
  );
}

function gainText(found, rank) {
  const [least, most, step] = [found.least_saving_ns, found.most_saving_ns, found.step_ns].map(format.duration);
  if (found.most_saving_ns <= 0) return `No saving of ${step} ${per(rank)}.`;
  const casts = `casts of the weights cost ${format.duration(found.casts_ns)}`;
  return `${found.least_saving_ns > 0 ? `${least} to ${most}` : `Up to ${most}`} of ${step} ${per(rank)}; ${casts}.`;
}

function casts(rank) {
  const { autocast: found } = rank;
  const steps = Math.max(found.steps, 1);
  const title = "Casts between floating-point types";
  const why = found.missing ? `Not known: ${found.missing}.` : found.count ? null : "No casts.";
  if (why) return section(title, { definition: "autocast-tax" }, h("p", { class: "aside" }, why));
  return section(
    title,
    { definition: "autocast-tax", aside: per(rank) },
    tiles([
      {
        label: "Casts",
        value: format.count(found.count / steps),
        note: `${format.duration(found.time_ns / steps)}, ${format.share(found.share)} of ${found.on_device ? "compute" : "the step"}`,
        definition: "autocast-tax",
      },
      {
        label: "Weights cast again",
        value: format.count(found.repeated_weight_casts / steps),
        note: format.duration(found.repeated_weight_ns / steps),
        definition: "repeated-weight-casts",
      },
      {
        label: "Round trips to FP32",
        value: format.count(found.round_trips / steps),
        note: format.duration(found.round_trip_ns / steps),
        definition: "round-trips",
      },
    ]),
    table({
      id: "casts",
      caption: "Casts by types",
      rows: found.casts,
      columns: [
        column.text("types", "From – to", {
          value: (row) => `${arithmeticLabel(row.source)} – ${arithmeticLabel(row.target)}`,
        }),
        column.perStep(steps, column.count("count", "Casts", { csv: "casts" })),
        column.perStep(steps, column.time("time_ns", "Time")),
      ],
    }),
  );
}
