// The view "Timeline": the steps in time, drawn from the report, and Perfetto's own timeline if a server provides it.

import { command, lead, missing, section, unlessMissing } from "../components/parts.js";
import { h } from "../core/dom.js";
import * as format from "../text/format.js";
import { stepTimeline } from "./sections/step_timeline.js";

export const timeline = { id: "timeline", title: "Timeline", kinds: ["run", "trace"], ...unlessMissing(reason, render) };

function reason({ rank }) {
  return rank ? null : "No step was profiled, so there is no timeline.";
}

function render(context) {
  const { rank, source, run, report } = context;
  return [
    section(
      rank.breakdown.marked ? "Steps" : "The recording",
      { definition: "step", aside: `${format.duration(rank.recording_ns)} recorded` },
      lead("Each step at its place in time. The colors show the share of each category, not when it ran within the step."),
      stepTimeline(rank),
    ),
    source.live ? perfetto(source, run, rank) : commands(report, rank),
  ];
}

function commands(report, rank) {
  if (rank.sources.length === 0) return null;
  return section(
    "Every event, in Perfetto's UI",
    {},
    lead("This file has the figures but not the events. To open the trace offline, run this command where the trace is:"),
    rank.sources.map((path) => command(`lightning-perf view ${quote(path)}`)),
  );
}

function perfetto(source, run, rank) {
  if (run.files === 0) return missing("The trace files of this run are not available here.");
  const files = Array.from({ length: run.files }, (_, i) => i);
  const names = files.map((i) => run.traces?.[i] ?? `file ${i + 1}`);
  const first = Math.max(0, names.indexOf(rank.sources[0]?.split("/").pop()));
  const choice = h(
    "select",
    { "aria-label": "Trace file" },
    files.map((i) => h("option", { value: i, selected: i === first }, names[i])),
  );
  const address = () => `perfetto/index.html#!/?url=${encodeURIComponent(source.trace(run.name, choice.value))}`;
  const place = h("div");
  const tab = h("a", { class: "button", target: "_blank", rel: "noopener", href: address() }, "In its own tab");
  const load = () =>
    place.replaceChildren(h("iframe", { class: "frame", title: `Timeline of ${names[choice.value]}`, src: address() }));
  choice.addEventListener("change", () => {
    tab.setAttribute("href", address());
    if (place.firstChild) load();
  });
  return section(
    "Every event, in Perfetto's UI",
    {},
    h(
      "div",
      { class: "row" },
      files.length > 1 ? choice : null,
      h("button", { type: "button", on: { click: load } }, "Show it here"),
      tab,
    ),
    place,
  );
}

// Quoted for a POSIX shell.
function quote(path) {
  return /^[\w@%+=:,./-]+$/.test(path) ? path : `'${path.replaceAll("'", "'\"'\"'")}'`;
}
