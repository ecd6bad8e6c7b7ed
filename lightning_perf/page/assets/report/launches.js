// The view "Launches & idle": the cost of launches, and the waits of the device and of the host.

import { chart, ink } from "../components/chart.js";
import { part } from "../components/blocks.js";
import * as column from "../components/column.js";
import { columns, missing, notice, section, tiles, timeStack } from "../components/parts.js";
import { table } from "../components/table.js";
import { h } from "../core/dom.js";
import * as format from "../text/format.js";
import { per } from "../text/labels.js";
import { idlePart } from "./sections/idle.js";

export const launches = { id: "launches", title: "Launches & idle", kinds: ["run", "trace"], missing: reason, render };

function reason({ rank }) {
  if (!rank) return "No step was profiled, so there are no launches.";
  if (!rank.breakdown.has_device)
    return "This recording has no device work, because it covers the host only. There are no launches and no idle device.";
  return null;
}

function render(context) {
  const { report, rank } = context;
  const why = reason(context);
  const own = (name) => part(report, `${name}.${report.ranks.indexOf(rank)}`);
  const host = columns(own("loading"), own("optimizer"));
  if (why) return [missing(why), host];
  return [
    rank.launches?.calls ? launchPart(rank) : missing("This recording has no launch calls."),
    rank.idle?.idle_ns ? idlePart(rank) : null,
    own("sync"),
    own("regions"),
    host,
  ];
}

function launchPart(rank) {
  const { launches: found } = rank;
  const steps = Math.max(found.steps, 1);
  const { delay, queue, graphs, launch_bound: bound } = found;
  const parts = bound && [
    { label: "in launch calls", value: bound.launch_ns, color: "kernel_launch" },
    { label: "in operators", value: bound.operator_ns, color: "host_compute" },
    { label: "in Python in between", value: bound.python_ns, color: "host_other" },
  ];
  return section(
    "Launches",
    { definition: "launch-call", aside: per(rank) },
    bound
      ? notice(
          bound.bound
            ? `Launch-bound: the device waits ${format.share(bound.share)} of the time for the host to issue work.`
            : `Not launch-bound: the device waits ${format.share(bound.share)} of the time for the host to issue work.`,
          bound.bound ? "high" : "good",
        )
      : null,
    tiles([
      { label: "Launch calls", value: format.count(found.calls / steps), definition: "launch-call" },
      {
        label: "Time in launch calls",
        value: format.duration(found.call_ns / steps),
        note: `${format.duration(found.exposed_ns / steps)} exposed`,
        definition: "launch-time",
      },
      {
        label: "Launch to start",
        value: format.duration(delay?.p50_ns),
        note: delay ? `p90 ${format.duration(delay.p90_ns)}, p99 ${format.duration(delay.p99_ns)}` : null,
        definition: "launch-delay",
      },
      {
        label: "Queue depth",
        value: format.count(queue?.mean),
        note: queue ? `at most ${format.count(queue.max)}` : null,
        definition: "queue-depth",
      },
      { label: "Queue empty", value: format.share(queue?.empty_share), note: "of the time", definition: "queue-depth" },
      {
        label: "Short kernels",
        value: format.count(found.short_kernels / steps),
        note: `of ${format.count(found.kernels / steps)}, ${format.duration(found.short_kernel_ns / steps)}`,
        definition: "short-kernels",
      },
      { label: "Outrun kernels", value: format.count(found.outrun_kernels / steps), definition: "outrun-kernels" },
      graphs && {
        label: "Graph launches",
        value: format.count(graphs.calls / steps),
        note: `${format.count(graphs.kernels_per_graph)} kernels each`,
        definition: "graph-launch",
      },
    ]),
    bound?.waiting_ns
      ? [h("h3", {}, "Time that the device waits for the host to issue work"), timeStack(parts, steps, { title: "Waiting for the host" })]
      : null,
    queue?.series.time_ns.length ? queueChart(queue) : null,
    queue && queue.streams.length > 1 ? streams(queue, steps) : null,
  );
}

function queueChart(queue) {
  const axis = format.timeAxis(queue.series.time_ns.at(-1));
  const draw = () => ({
    data: [
      {
        type: "scatter",
        mode: "lines",
        x: queue.series.time_ns.map((time) => time / axis.size_ns),
        y: queue.series.value,
        line: { shape: "hv", width: 1.2, color: ink("accent") },
        fill: "tozeroy",
        fillcolor: `${ink("accent")}22`,
        hovertemplate: `%{y} queued<extra>%{x:.4~g} ${axis.name}</extra>`,
      },
    ],
    layout: { xaxis: { title: `${axis.name} since the start of the recording` }, yaxis: { title: "queued", rangemode: "tozero" } },
  });
  return [
    h("h3", {}, "Queue depth over time"),
    chart({ title: `Queue depth over the recording, on average ${format.count(queue.mean)}`, draw, height: 220 }),
  ];
}

function streams(queue, steps) {
  return table({
    id: "streams",
    caption: "Queues by stream",
    rows: queue.streams,
    columns: [
      column.text("stream", "Stream", { value: (row) => `device ${row.device}, stream ${row.stream}` }),
      column.perStep(steps, column.count("items", "Items")),
      column.count("mean", "Mean depth", { csv: "mean_depth" }),
      column.count("max", "Greatest", { csv: "max_depth" }),
      column.share("empty_share", "Empty", { bar: (row) => row.empty_share }),
    ],
  });
}
