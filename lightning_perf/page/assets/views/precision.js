// The precision of a run: the loss scale, overflows, underflow by layer, the distance from FP32, and what casts cost.

import { h } from "../dom.js";
import * as format from "../format.js";
import { columns, facts, missing, notice, section, tiles } from "../parts.js";
import { driftChart, lossChart, scaleChart } from "../precision_charts.js";
import { table } from "../table.js";
import { arithmeticLabel, per } from "../words.js";

export const precision = { id: "precision", title: "Precision", kinds: ["run", "trace"], missing: reason, render };

const NO_RECORD =
  "Nothing is recorded of the run's precision: a trace alone does not hold the loss scale or gradients. Train with " +
  "`PerfCallback(precision=…)` and analyse the run's folder to see loss scale, overflows and underflow by layer.";

function reason({ report, rank }) {
  return report.precision || rank?.autocast?.count || rank?.amp_gain ? null : NO_RECORD;
}

function render({ report, rank }) {
  const found = report.precision;
  return [
    found
      ? [setting(found.setting), found.loss_scale && lossScale(found.loss_scale), found.underflow && underflow(found.underflow), found.numerics && numerics(found.numerics)]
      : missing(NO_RECORD),
    rank?.amp_gain ? gain(rank) : null,
    rank?.autocast ? casts(rank) : null,
  ];
}

function setting(found) {
  const { fp32 } = found;
  const tf32 = !fp32.device_has_tf32 ? "the device has none" : `products ${fp32.tf32_matmul ? "on" : "off"}, convolutions ${fp32.tf32_convolution ? "on" : "off"}`;
  return section(
    "Setting",
    {},
    found.note ? notice(found.note) : null,
    facts([
      ["Precision", `${found.precision}${found.switched ? " (switched by the callback)" : ""}`],
      found.requested && found.requested !== found.precision && ["Asked for", found.requested],
      ["TF32", tf32],
      found.weight_cache !== null && ["Autocast's weight cache", found.weight_cache ? "on" : "off"],
      found.keep_fp32.length > 0 && ["Kept in FP32", found.keep_fp32.join(", ")],
    ]),
  );
}

function lossScale(history) {
  const kinds = { start: "start", overflow: "overflow: step skipped", growth: "growth", end: "end" };
  const origin = (event) => {
    if (!event.origin) return null;
    return event.origin.module ? `first ${event.origin.value} in ${event.origin.module}, ${event.origin.what}` : `the loss itself was ${event.origin.value}`;
  };
  return section(
    "Loss scale",
    { definition: "loss-scale" },
    history.finished ? null : notice("The run did not end: this is its last known state."),
    history.scheduler_steps_on_skips
      ? notice(`Learning-rate schedulers made ${format.countOf(history.scheduler_steps_on_skips, "step")} on skipped optimizer steps: the schedule is ahead of the weights by that.`)
      : null,
    tiles([
      { label: "Scale at the end", value: format.count(history.final_scale), note: `${format.count(history.initial_scale)} at the start`, definition: "loss-scale" },
      { label: "Range", value: `${format.count(history.lowest_scale)} – ${format.count(history.highest_scale)}` },
      { label: "Skipped steps", value: format.count(history.skipped_steps), note: `of ${format.count(history.attempts)}`, definition: "loss-scale" },
      { label: "Goodput", value: format.share(history.trained_ns ? 1 - history.wasted_ns / history.trained_ns : null), note: `${format.duration(history.wasted_ns)} wasted`, definition: "goodput" },
      { label: "Schedule ahead", value: format.count(history.scheduler_steps_on_skips), note: "steps", definition: "schedule-ahead" },
    ]),
    scaleChart(history),
    table({
      id: "scale-events",
      caption: "Changes of the loss scale",
      rows: history.events,
      columns: [
        { key: "step", title: "Step", kind: "number", csv: "step", value: (row) => row.step, show: format.count },
        { key: "kind", title: "What", kind: "text", csv: "what", value: (row) => kinds[row.kind] },
        { key: "scale", title: "Scale from here", kind: "number", csv: "scale", value: (row) => row.scale, show: format.count },
        { key: "wasted", title: "Wasted", kind: "number", csv: "wasted_ns", value: (row) => row.wasted_ns, show: (time) => (time ? format.duration(time) : format.NOT_AVAILABLE) },
        { key: "origin", title: "Where", kind: "text", csv: "origin", value: origin },
      ],
    }),
  );
}

function underflow(found) {
  const named = found.layers.filter((layer) => layer.underflows).length;
  const exponent = (value) => (value === null ? format.NOT_AVAILABLE : `2${superscript(value)}`);
  return section(
    "Gradient underflow by layer",
    { definition: "subnormal-share", aside: `${format.countOf(found.samples, "sampled step")} at a scale of ${format.count(found.scale)}` },
    named ? notice(`${format.countOf(named, "layer")} of ${found.layers.length} underflow${named === 1 ? "s" : ""} in FP16.`) : notice("No layer underflows in FP16.", "good"),
    found.advice ? h("p", { class: "action" }, `${found.advice.text}.`) : null,
    table({
      id: "underflow",
      caption: "Gradient underflow by layer",
      rows: found.layers,
      sort: "subnormal",
      columns: [
        { key: "name", title: "Layer", kind: "text", code: true, csv: "layer", value: (row) => row.name },
        { key: "underflows", title: "Underflows", kind: "text", csv: "underflows", value: (row) => (row.vanished ? "all vanished" : row.underflows ? "yes" : "no") },
        { key: "arithmetic", title: "Computed in", kind: "text", csv: "arithmetic", value: (row) => arithmeticLabel(row.arithmetic) },
        { key: "subnormal", title: "Subnormal", kind: "number", csv: "subnormal_share", definition: "subnormal-share", value: (row) => row.subnormal_share, show: format.share, bar: (row) => row.subnormal_share },
        { key: "zero", title: "Zero", kind: "number", csv: "zero_share", definition: "zero-share", value: (row) => row.zero_share, show: format.share },
        { key: "median", title: "Median size", kind: "number", csv: "median_exponent", value: (row) => row.median_exponent, show: exponent },
        { key: "headroom", title: "Scale headroom", kind: "number", csv: "headroom_doublings", definition: "scale-headroom", value: (row) => row.headroom_doublings, show: (value) => (value === null ? format.NOT_AVAILABLE : `${value} doublings`) },
      ],
    }),
  );
}

function superscript(number) {
  return String(number).replace(/[-0-9]/g, (sign) => (sign === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[sign]));
}

function numerics(drift) {
  const text =
    `After ${drift.mixed_losses.length} batches the loss is ${drift.mixed_end.toPrecision(4)}, in FP32 ${drift.fp32_end.toPrecision(4)}; ` +
    `with other seeds ${drift.expected_low.toPrecision(4)} – ${drift.expected_high.toPrecision(4)} is expected: `;
  return section(
    "Beside FP32",
    { definition: "seed-noise" },
    notice(`${text}${drift.beyond_seed_noise ? "beyond seed noise." : "within seed noise."}`, drift.beyond_seed_noise ? "high" : "good"),
    columns(lossChart(drift), drift.layers.length ? driftChart(drift) : null),
  );
}

function gain(rank) {
  const { amp_gain: found } = rank;
  const steps = Math.max(found.steps, 1);
  const time = (key, title) => ({ key, title, kind: "number", csv: `${key}_per_step`, value: (row) => row[key] / steps, show: format.duration });
  return section(
    "What mixed precision can be expected to gain",
    { aside: found.device ? `by the peak rates of ${found.device}` : "by general factors: the device's peak rates are not known" },
    h("p", {}, `${format.duration(found.least_saving_ns)} to ${format.duration(found.most_saving_ns)} of ${format.duration(found.step_ns)} ${per(rank)}; casts of the weights cost ${format.duration(found.casts_ns)}.`),
    table({
      id: "gain",
      caption: "Parts of the compute time, now and in mixed precision",
      rows: found.parts,
      columns: [
        { key: "name", title: "Part", kind: "text", csv: "part", value: (row) => row.name },
        { key: "kernels", title: "Kernels", kind: "number", csv: "kernels_per_step", value: (row) => row.kernels / steps, show: format.count },
        time("time_ns", "Now"),
        time("fastest_ns", "At the least"),
        time("slowest_ns", "At the most"),
      ],
    }),
  );
}

function casts(rank) {
  const { autocast: found } = rank;
  const steps = Math.max(found.steps, 1);
  if (found.missing) return section("Casts between floating types", { definition: "autocast-tax" }, h("p", { class: "aside" }, `Not known: ${found.missing}.`));
  if (!found.count) return section("Casts between floating types", { definition: "autocast-tax" }, h("p", { class: "aside" }, "There are none."));
  return section(
    "Casts between floating types",
    { definition: "autocast-tax", aside: per(rank) },
    tiles([
      { label: "Casts", value: format.count(found.count / steps), note: `${format.duration(found.time_ns / steps)}, ${format.share(found.share)} of ${found.on_device ? "compute" : "the step"}`, definition: "autocast-tax" },
      { label: "Weights cast again", value: format.count(found.repeated_weight_casts / steps), note: format.duration(found.repeated_weight_ns / steps), definition: "repeated-weight-casts" },
      { label: "To FP32 and back", value: format.count(found.round_trips / steps), note: format.duration(found.round_trip_ns / steps), definition: "round-trips" },
    ]),
    table({
      id: "casts",
      caption: "Casts by types",
      rows: found.casts,
      columns: [
        { key: "types", title: "From – to", kind: "text", csv: "types", value: (row) => `${arithmeticLabel(row.source)} – ${arithmeticLabel(row.target)}` },
        { key: "count", title: "Casts", kind: "number", csv: "casts_per_step", value: (row) => row.count / steps, show: format.count },
        { key: "time", title: "Time", kind: "number", csv: "time_ns_per_step", value: (row) => row.time_ns / steps, show: format.duration },
      ],
    }),
  );
}
