// What launching costs, what the device waits for, and what the host does meanwhile.

import { chart, ink } from "../chart.js";
import { h } from "../dom.js";
import * as format from "../format.js";
import { columns, facts, missing, notice, section, stack, swatch, tiles } from "../parts.js";
import { table } from "../table.js";
import { label, per } from "../words.js";

export const launches = { id: "launches", title: "Launches & idle", kinds: ["run", "trace"], missing: reason, render };

function reason({ rank }) {
  if (!rank) return "No step was profiled, so there are no launches.";
  if (!rank.breakdown.has_device) return "The recording holds no device work: it was made on the host alone, where nothing is launched and no device idles.";
  return null;
}

function render(context) {
  const { rank } = context;
  const why = reason(context);
  const host = rank && columns(loading(rank), optimizer(rank));
  if (why) return [missing(why), host];
  return [rank.launches?.calls ? launchPart(rank) : missing("The recording holds no launch calls."), rank.idle?.idle_ns ? idlePart(rank) : null, syncPart(rank), host];
}

function launchPart(rank) {
  const { launches: found } = rank;
  const steps = Math.max(found.steps, 1);
  const { delay, queue, graphs, launch_bound: bound } = found;
  const parts = bound && [
    { label: "in launch calls", value: bound.launch_ns, color: "kernel_launch", text: format.duration(bound.launch_ns / steps) },
    { label: "in operators", value: bound.operator_ns, color: "host_compute", text: format.duration(bound.operator_ns / steps) },
    { label: "in Python between them", value: bound.python_ns, color: "host_other", text: format.duration(bound.python_ns / steps) },
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
      { label: "Time in them", value: format.duration(found.call_ns / steps), note: `${format.duration(found.exposed_ns / steps)} not hidden`, definition: "launch-time" },
      { label: "Launch to start", value: format.duration(delay?.p50_ns), note: delay ? `p90 ${format.duration(delay.p90_ns)}, p99 ${format.duration(delay.p99_ns)}` : null, definition: "launch-delay" },
      { label: "Queue depth", value: format.count(queue?.mean), note: queue ? `at most ${format.count(queue.max)}` : null, definition: "queue-depth" },
      { label: "Queue empty", value: format.share(queue?.empty_share), note: "of the time", definition: "queue-depth" },
      { label: "Short kernels", value: format.count(found.short_kernels / steps), note: `of ${format.count(found.kernels / steps)}, ${format.duration(found.short_kernel_ns / steps)}`, definition: "short-kernels" },
      { label: "Outrun by launch", value: format.count(found.outrun_kernels / steps), definition: "outrun-kernels" },
      graphs && { label: "Graph launches", value: format.count(graphs.calls / steps), note: `${format.count(graphs.kernels_per_graph)} kernels each`, definition: "graph-launch" },
    ]),
    bound?.waiting_ns ? [h("h3", {}, "Waiting for the host to issue work"), stack(parts, { title: "Waiting for the host" })] : null,
    queue?.series.time_ns.length ? queueChart(queue) : null,
    queue && queue.streams.length > 1 ? streams(queue, steps) : null,
  );
}

function queueChart(queue) {
  const draw = () => ({
    data: [
      {
        type: "scatter",
        mode: "lines",
        x: queue.series.time_ns.map((time) => time / 1e6),
        y: queue.series.value,
        line: { shape: "hv", width: 1.2, color: ink("kernel_launch") },
        fill: "tozeroy",
        fillcolor: `${ink("kernel_launch")}22`,
        hovertemplate: "%{y} queued<extra>%{x:.1f} ms</extra>",
      },
    ],
    layout: { xaxis: { title: "ms of the recording" }, yaxis: { title: "queued", rangemode: "tozero" } },
  });
  return [h("h3", {}, "Queue depth over time"), chart({ title: `Queue depth over the recording, on average ${format.count(queue.mean)}`, draw, height: 220 })];
}

function streams(queue, steps) {
  return table({
    id: "streams",
    caption: "Queues by stream",
    rows: queue.streams,
    columns: [
      { key: "stream", title: "Stream", kind: "text", csv: "stream", value: (row) => `device ${row.device}, stream ${row.stream}` },
      { key: "items", title: "Items", kind: "number", csv: "items_per_step", value: (row) => row.items / steps, show: format.count },
      { key: "mean", title: "Mean depth", kind: "number", csv: "mean_depth", value: (row) => row.mean, show: format.count },
      { key: "max", title: "Greatest", kind: "number", csv: "max_depth", value: (row) => row.max, show: format.count },
      { key: "empty", title: "Empty", kind: "number", csv: "empty_share", value: (row) => row.empty_share, show: format.share, bar: (row) => row.empty_share },
    ],
  });
}

function idlePart(rank) {
  const { idle } = rank;
  const steps = Math.max(idle.steps, 1);
  const rows = idle.classes.filter((row) => row.total_ns > 0);
  const place = (gap) => gap.python ?? gap.operator ?? gap.annotation;
  return section(
    "Device idle",
    { definition: "device-idle", aside: `${format.duration(idle.idle_ns / steps)} ${per(rank)}, ${format.share(idle.share)}, in ${format.count(idle.gaps / steps)} gaps; the median gap is ${format.duration(idle.median_gap_ns)}` },
    stack(
      rows.map((row) => ({ label: label("gaps", row.name), value: row.total_ns, color: row.name, text: format.duration(row.total_ns / steps) })),
      { title: "What the host did while the device idled" },
    ),
    table({
      id: "idle",
      caption: "Idle time by what the host did",
      rows,
      searchable: false,
      columns: [
        { key: "name", title: "While the host was", kind: "text", csv: "cause", value: (row) => label("gaps", row.name), show: (text, row) => h("span", { class: "with-swatch" }, swatch(row.name), text) },
        { key: "time", title: "Time", kind: "number", csv: "idle_ns_per_step", value: (row) => row.total_ns / steps, show: format.duration },
        { key: "share", title: "Share", kind: "number", csv: "share", value: (row) => row.share, show: format.share, bar: (row) => row.share },
        { key: "gaps", title: "Gaps", kind: "number", csv: "gaps_per_step", value: (row) => row.gaps / steps, show: format.count },
        { key: "remedy", title: "What removes it", kind: "text", csv: "remedy", value: (row) => row.remedy },
      ],
    }),
    h("h3", {}, "Longest gaps"),
    table({
      id: "gaps",
      caption: "Longest gaps",
      rows: idle.longest,
      searchable: false,
      sort: "length",
      columns: [
        { key: "step", title: "Step", kind: "number", csv: "step", value: (row) => row.step, show: format.count },
        { key: "start", title: "At", kind: "number", csv: "start_ns", value: (row) => row.start_ns, show: format.duration },
        { key: "length", title: "Length", kind: "number", csv: "length_ns", value: (row) => row.length_ns, show: format.duration },
        { key: "cause", title: "While", kind: "text", csv: "cause", value: (row) => label("gaps", row.cause), show: (text, row) => h("span", { class: "with-swatch" }, swatch(row.cause), text) },
        { key: "place", title: "In", kind: "text", code: true, csv: "place", value: place },
        { key: "after", title: "Ended by", kind: "text", code: true, csv: "after", value: (row) => row.after },
      ],
    }),
  );
}

function syncPart(rank) {
  const { sync_points: found } = rank;
  if (!found?.points.length) return null;
  const steps = Math.max(found.steps, 1);
  const time = (key, title) => ({ key, title, kind: "number", csv: `${key}_per_step`, value: (row) => row[key] / steps, show: format.duration });
  return section(
    "Waits for the device",
    { definition: "sync-point", aside: per(rank) },
    table({
      id: "sync",
      caption: "Where the host waits for the device",
      rows: found.points,
      columns: [
        { key: "operator", title: "In", kind: "text", code: true, csv: "operator", value: (row) => row.operator ?? "(no operator)" },
        { key: "call", title: "Call", kind: "text", code: true, csv: "call", value: (row) => row.call },
        { key: "calls", title: "Calls", kind: "number", csv: "calls_per_step", value: (row) => row.calls / steps, show: format.count },
        time("wait_ns", "Wait"),
        time("drained_ns", "Drained"),
        time("regained_ns", "Regained"),
      ],
    }),
  );
}

function loading({ loading: found }) {
  if (!found) return null;
  const steps = Math.max(found.steps, 1);
  const who = { in_process: "the training process itself (num_workers=0)", workers: "worker processes" }[found.loader];
  return section(
    "Batch loading",
    { definition: "batch-loading", aside: "a step" },
    facts([
      ["Batches made by", who ?? "not told by the recording"],
      ["Fetches", format.count(found.fetches / steps)],
      ["Time in fetches", format.duration(found.fetch_ns / steps)],
      ["of it in operators", format.duration(found.operator_ns / steps)],
      found.pageable_copies > 0 && ["Copies from pageable memory", `${format.count(found.pageable_copies / steps)}, ${format.bytes(found.pageable_bytes / steps)} in ${format.duration(found.pageable_ns / steps)}`],
    ]),
  );
}

function optimizer({ optimizer: found }) {
  if (!found) return null;
  const steps = Math.max(found.steps, 1);
  return section(
    "Optimizer",
    { definition: "optimizer-step", aside: "a step" },
    facts([
      ["Optimizer", `${found.name}${found.implementation ? ` (${found.implementation})` : ""}`],
      ["Operators", format.count(found.operators / steps)],
      ["Launches", format.count(found.launches / steps)],
      ["On the host", format.duration(found.host_ns / steps)],
      found.launches > 0 && ["On the device", format.duration(found.device_ns / steps)],
    ]),
  );
}
