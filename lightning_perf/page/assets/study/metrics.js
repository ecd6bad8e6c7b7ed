// The metrics of studies, as in lightning_perf/compare/records/metrics.py, and the format of their values.

import * as format from "../text/format.js";

export const METRICS = {
  step_time: { title: "step time", unit: "ms", scale: "ratio", higherIsBetter: false },
  train_time: { title: "training time", unit: "s", scale: "ratio", higherIsBetter: false },
  throughput: { title: "throughput", unit: "samples/s", scale: "ratio", higherIsBetter: true },
  fit_throughput: { title: "throughput of the whole fit", unit: "samples/s", scale: "ratio", higherIsBetter: true },
  time_to_first_step: { title: "time to the first step", unit: "s", scale: "ratio", higherIsBetter: false },
  time_to_accuracy: { title: "time to accuracy", unit: "s", scale: "ratio", higherIsBetter: false },
  accuracy: { title: "accuracy", unit: "share", scale: "difference", higherIsBetter: true },
  loss: { title: "loss", unit: "", scale: "ratio", higherIsBetter: false },
  score: { title: "score", unit: "", scale: "ratio", higherIsBetter: true },
  device_memory: { title: "peak device memory", unit: "bytes", scale: "ratio", higherIsBetter: false },
  host_memory: { title: "peak host memory", unit: "bytes", scale: "ratio", higherIsBetter: false },
};

const SHOWN = {
  ms: (value) => format.duration(value * 1e6),
  s: (value) => format.duration(value * 1e9),
  "samples/s": (value) => format.digits(value),
  share: (value) => `${(100 * value).toFixed(2)} %`,
  bytes: (value) => format.bytes(Math.round(value)),
};

/** The title of a metric, or its name if it is not known. */
export function metricTitle(name) {
  return METRICS[name]?.title ?? name;
}

/** A value of a metric, with its unit. For a throughput the unit is in the heading of the column. */
export function metricValue(name, value) {
  return Number.isFinite(value) ? (SHOWN[METRICS[name]?.unit] ?? format.digits)(value) : format.NOT_AVAILABLE;
}

/** Whether values of two arms are compared as a ratio, and not as a difference. */
export function isRatio(name) {
  return METRICS[name]?.scale !== "difference";
}

/** A change of a metric as text: a ratio as per cent with a sign, a difference of shares in points. */
export function changeText(name, value) {
  if (!Number.isFinite(value)) return format.NOT_AVAILABLE;
  return isRatio(name) ? signedPercent(value) : `${sign(value)}${Math.abs(100 * value).toFixed(2)} pt`;
}

/** An interval of a change: "+1.0 % to +2.0 %". */
export function intervalText(name, { low, high }) {
  if (Number.isFinite(low) && low === high) return "the same in every block";
  return Number.isFinite(low) && Number.isFinite(high)
    ? `${changeText(name, low)} to ${changeText(name, high)}`
    : format.NOT_AVAILABLE;
}

/** A ratio as a change, by the rules of lightning_perf/units.py: 0.94 is "−6.0 %", 17.865 is "×17.9". */
export function signedPercent(ratio) {
  if (ratio <= 0.1 || ratio >= 10) return factorText(ratio);
  const change = 100 * (ratio - 1);
  const size = Math.abs(change);
  if (size < 0.005) return "±0 %";
  return `${sign(change)}${size.toFixed(size >= 99.95 ? 0 : size >= 0.995 ? 1 : 2)} %`;
}

function factorText(factor) {
  if (factor > 1e6) return "over ×10⁶";
  if (factor < 1e-6) return "under ×10⁻⁶";
  if (factor <= 0.1) return `×${factor.toFixed(1 - Math.floor(Math.log10(factor)))}`;
  return `×${factor.toFixed(factor < 99.95 ? 1 : 0)}`;
}

/** The factor that brings values of a metric to the unit of an axis, and that unit. */
export function axisScale(name, largest) {
  const unit = METRICS[name].unit;
  if (unit === "share") return { factor: 100, unit: "%" };
  if (unit === "bytes") return { factor: 2 ** -20, unit: "MiB" };
  if (unit === "ms" && largest >= 10_000) return { factor: 1e-3, unit: "s" };
  if (unit === "ms" && largest < 0.1) return { factor: 1000, unit: "µs" };
  return unit === "s" && largest >= 600 ? { factor: 1 / 60, unit: "min" } : { factor: 1, unit };
}

function sign(value) {
  return value < 0 ? "−" : "+";
}
