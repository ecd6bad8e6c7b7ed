// The view "Timeline": the steps in time, drawn from the report, and Perfetto's own timeline if a server provides it.

import { reasonOf } from "../components/blocks.js";
import { command, lead, missing, section, unlessMissing } from "../components/parts.js";
import { h } from "../core/dom.js";
import { quote } from "../timeline/details.js";
import { readRanks } from "../timeline/lanes.js";
import { openDock, perfettoAddress, restoreDock, seeDock, tracesOf } from "../timeline/perfetto.js";
import { timelineElement } from "../timeline/timeline.js";
import * as format from "../text/format.js";

export const timeline = { id: "timeline", title: "Timeline", kinds: ["run", "trace"], ...unlessMissing(reasonOf("timeline"), render) };

const OLDER = "This report does not have the times within its steps. Analyze the trace again.";

function render(context) {
  const { rank, source, report } = context;
  const found = readRanks(report);
  restoreDock(context, found?.ranks);
  const drawn = found?.ranks.some((item) => item.rank === rank) ? timelineElement(context, found) : missing(OLDER);
  return [
    section(
      rank.breakdown.marked ? "Steps" : "The recording",
      { definition: "timeline", aside: `${format.duration(rank.recording_ns)} recorded` },
      drawn,
    ),
    source.live ? perfetto(context) : commands(report, rank),
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

function perfetto({ source, run, rank }) {
  const files = tracesOf(run);
  if (files.length === 0) return missing("The trace files of this run are not available here.");
  const first = Math.max(0, files.findIndex(({ name }) => name === rank.sources[0]?.split("/").pop()));
  const choice = h(
    "select",
    { "aria-label": "Trace file" },
    files.map(({ index, name }) => h("option", { value: index, selected: index === first }, name)),
  );
  const tab = h("a", { class: "button", target: "_blank", rel: "noopener" }, "In its own tab");
  const follow = () => tab.setAttribute("href", perfettoAddress(source, run, Number(choice.value)));
  choice.addEventListener("change", follow);
  follow();
  return section(
    "Every event, in Perfetto's UI",
    {},
    h(
      "div",
      { class: "row" },
      files.length > 1 ? choice : null,
      h(
        "button",
        { type: "button", on: { click: () => (openDock({ source, run }, Number(choice.value)), seeDock()) } },
        "Show it here",
      ),
      tab,
    ),
  );
}
