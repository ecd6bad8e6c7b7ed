// What the timer that is always on measured.

import * as column from "../column.js";
import * as format from "../format.js";
import { notice, section } from "../parts.js";
import { table } from "../table.js";

/** Step times without the profiler. */
export function stepTimes(times) {
  const rows = [
    { name: "Step", mean: times.mean_ns, p50: times.p50_ns, p90: times.p90_ns, p99: times.p99_ns },
    { name: "Wait for data", mean: times.data_wait_mean_ns, p50: null, p90: times.data_wait_p90_ns, p99: null },
    ...(times.device_mean_ns === null
      ? []
      : [{ name: "Device", mean: times.device_mean_ns, p50: null, p90: null, p99: null }]),
  ];
  const figure = (key, title) => column.time(key, title, { csv: `${key}_ns` });
  const trend = (value, text) =>
    value !== null && Math.abs(value) >= 0.05
      ? notice(`${text} ${format.share(Math.abs(value))} ${value > 0 ? "slower" : "faster"}.`)
      : null;
  return section(
    "Step times without the profiler",
    {
      definition: "step-timer",
      aside: `${format.countOf(times.steps, "step")}, ${format.share(times.data_wait_share)} waiting for data`,
    },
    table({
      id: "step-times",
      caption: "Step times by the always-on timer",
      rows,
      columns: [
        column.text("name", "What", { csv: "what" }),
        figure("mean", "Mean"),
        figure("p50", "p50"),
        figure("p90", "p90"),
        figure("p99", "p99"),
      ],
    }),
    times.only_profiled ? notice("Every step after the warm-up was profiled: these times include the profiler's own cost.") : null,
    trend(times.drift, "Against its first quarter, the last quarter of the run was"),
    trend(times.after_profiling, "Against the steps before, those after the profiled ones were"),
  );
}
