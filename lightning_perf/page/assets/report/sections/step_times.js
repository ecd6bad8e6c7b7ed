// Step times of the step timer, which runs without the profiler.

import * as column from "../../components/column.js";
import { notice, section } from "../../components/parts.js";
import { table } from "../../components/table.js";
import { h } from "../../core/dom.js";
import * as format from "../../text/format.js";

/** Step times without the profiler. */
export function stepTimes(times) {
  const rows = [
    { name: "Step", mean: times.mean_ns, p50: times.p50_ns, p90: times.p90_ns, p99: times.p99_ns },
    { name: "Data wait", mean: times.data_wait_mean_ns, p50: null, p90: times.data_wait_p90_ns, p99: null },
    ...(times.device_mean_ns === null
      ? []
      : [{ name: "Device, without data wait", mean: times.device_mean_ns, p50: null, p90: null, p99: null }]),
  ];
  const figure = (key, title) => column.time(key, title, { csv: `${key}_ns` });
  const trend = (value, before, after) =>
    value !== null && Math.abs(value) >= 0.05
      ? notice(`${before} ${format.share(Math.abs(value))} ${value > 0 ? "slower" : "faster"} than ${after}.`)
      : null;
  const leftOut = [
    times.warmup_steps ? `${times.warmup_steps} to warm up` : null,
    times.profiled_steps ? `${times.profiled_steps} profiled` : null,
  ].filter(Boolean);
  return section(
    "Step times without the profiler",
    {
      definition: "step-timer",
      aside: [
        format.countOf(times.steps, "step"),
        `${format.share(times.data_wait_share)} waiting for data`,
        leftOut.length ? `left out: ${leftOut.join(", ")}` : null,
      ]
        .filter(Boolean)
        .join(" · "),
    },
    table({
      id: "step-times",
      caption: "Step times by the step timer",
      rows,
      columns: [
        column.text("name", "Time", { csv: "what" }),
        figure("mean", "Mean"),
        figure("p50", "p50"),
        figure("p90", "p90"),
        figure("p99", "p99"),
      ],
    }),
    times.only_profiled ? notice("Every step after the warm-up was profiled: these times include the profiler's own cost.") : null,
    trend(times.drift, "The last quarter of the run was", "the first"),
    trend(times.after_profiling, "Steps after the profiled ones were", "those before"),
    outliers(times),
  );
}

function outliers({ outlier_steps: number, outlier_excess_ns: excess_ns, outliers: [longest] }) {
  if (!number) return null;
  return h(
    "p",
    {},
    `${format.countOf(number, "outlier")}, together ${format.duration(excess_ns)} over the median. ` +
      `The longest is step ${longest.step} with ${format.duration(longest.step_ns)}.`,
  );
}
