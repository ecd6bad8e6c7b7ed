// The view "Distributed": the ranks of a run side by side, their waits for each other, and the cost of communication.

import { chart, chartText, ink } from "../components/chart.js";
import * as column from "../components/column.js";
import { legend, missing, notice, section, tiles, unlessMissing } from "../components/parts.js";
import { tableSection } from "../components/table.js";
import { largest } from "../core/numbers.js";
import * as format from "../text/format.js";
import { label, per } from "../text/labels.js";
import { communication } from "./sections/communication.js";

const MANY_RANKS = 16; // with more ranks the bars are thin, and the ranks with the most work come first

export const distributed = {
  id: "distributed",
  title: "Distributed",
  kinds: ["run", "trace"],
  ...unlessMissing(reason, render),
};

function reason({ report, rank }) {
  if (!rank) return "No step was profiled, so there are no ranks to compare.";
  if (report.ranks.length > 1 || rank.communication) return null;
  if (rank.metadata.world_size > 1) {
    return `This recording is from one of ${rank.metadata.world_size} ranks and has no collectives. To compare the ranks, analyze the folder with the traces of all of them.`;
  }
  return "The run has one rank, and no collective ran in it.";
}

function render(context) {
  const { report, rank } = context;
  const compared = report.distributed;
  return [
    compared
      ? [summary(report), sideBySide(report), rankTable(compared), skew(compared)]
      : report.ranks.length > 1
        ? [notice("The recordings do not contain their ranks, so waits between ranks are not known."), sideBySide(report)]
        : null,
    rank.communication ? communication(rank, report.ranks.length > 1) : missing("No collective ran on this rank."),
  ];
}

function summary({ distributed: compared, who_waits: sentences }) {
  const { awaited, straggler } = compared;
  if (compared.ranks.length < 2) {
    const text = "Only one rank was read. To see which rank the others wait for, put the traces of all ranks into one folder.";
    return section("Ranks compared", { definition: "straggler", aside: ranksRead(compared) }, notice(text));
  }
  return section(
    "Ranks compared",
    {
      definition: "straggler",
      aside: ranksRead(compared),
    },
    sentences.map((text) => notice(text, awaited || straggler ? "note" : "good")),
    compared.clocks_comparable === false
      ? notice("The ranks' clocks differ, so durations decide which rank arrived last.")
      : null,
    tiles([
      {
        label: "Imbalance",
        value: format.share(compared.imbalance),
        note: "longest work over mean work",
        definition: "imbalance",
      },
      { label: "If balanced", value: format.duration(compared.balanced_saving_ns), note: "saved per step" },
      { label: "Collectives matched", value: format.count(compared.matched_collectives), definition: "skew" },
      {
        label: "Waited for most",
        value: awaited ? `rank ${awaited.rank}` : compared.matched_collectives ? "none" : "–",
        note: awaited ? `last to ${format.share(awaited.last_arrival_share)}` : null,
        definition: "awaited",
      },
    ]),
  );
}

function ranksRead({ ranks, world_size: world }) {
  return world ? `${ranks.length} of ${world} ranks were read` : null;
}

function sideBySide(report) {
  const names = report.ranks.map((item, i) => (item.rank === null ? `recording ${i + 1}` : `rank ${item.rank}`));
  const categories = report.ranks[0].breakdown.categories.filter((row) => row.parent === null).map((row) => row.name);
  const mean = (item, name) => item.breakdown.categories.find((row) => row.name === name)?.mean_ns ?? 0;
  const used = categories.filter((name) => report.ranks.some((item) => mean(item, name) > 0));
  const axis = format.timeAxis(largest(report.ranks.map((item) => item.breakdown.wall.mean_ns ?? 0)));
  const draw = () => ({
    data: used.map((name) => ({
      type: "bar",
      orientation: "h",
      name: label("categories", name),
      y: names.map(chartText),
      x: report.ranks.map((item) => mean(item, name) / axis.size_ns),
      customdata: report.ranks.map(
        (item) => `${format.duration(mean(item, name))} of ${format.duration(item.breakdown.wall.mean_ns)} in total`,
      ),
      hovertemplate: "%{fullData.name}: %{customdata}<extra>%{y}</extra>",
      marker: { color: ink(name) },
    })),
    layout: {
      barmode: "stack",
      xaxis: { title: `${axis.name} ${per(report.ranks[0])}` },
      yaxis: { autorange: "reversed" },
      showlegend: false,
    },
  });
  return section(
    "Step time by rank",
    { definition: "step-time-breakdown" },
    legend(used.map((name) => ({ label: label("categories", name), color: name }))),
    chart({
      title: "Mean step time by category, with one bar per rank. The table has the figures.",
      draw,
      height: 70 + (report.ranks.length > MANY_RANKS ? 14 : 30) * report.ranks.length,
    }),
  );
}

function rankTable(compared) {
  const columns = column.filled(compared.ranks, [
    column.number("rank", "Rank", { show: String }),
    column.text("hostname", "Host", { csv: "host" }),
    column.time("step_ns", "Step time", { definition: "step" }),
    column.time("work_ns", "Own work", { definition: "own-work" }),
    column.time("wait_ns", "Waits", { definition: "wait-for-ranks" }),
    column.time("awaited_ns", "Awaited", { definition: "awaited" }),
    column.time("compute_ns", "Compute", { definition: "device_compute" }),
    column.time("exposed_communication_ns", "Exposed comm.", { definition: "communication" }),
    column.time("input_ns", "Input", { definition: "input" }),
    column.count("last_arrivals", "Arrived last", { csv: "arrived_last", definition: "arrived-last" }),
    column.time("late_ns", "Began late", { definition: "began-late" }),
    column.count("steps", "Steps"),
  ]);
  return tableSection("Ranks", {
    aside: "mean per step",
    id: "ranks",
    caption: "Ranks side by side",
    columns,
    rows: compared.ranks,
    ...(compared.ranks.length > MANY_RANKS
      ? { sort: "work_ns", descending: true }
      : { sort: "rank", descending: false }),
  });
}

function skew(compared) {
  if (compared.skew.length === 0) return null;
  return tableSection("Skew by collective", {
    definition: "skew",
    id: "skew",
    rows: compared.skew,
    columns: column.filled(compared.skew, [
      column.text("name", "Collective", { code: true, csv: "collective" }),
      column.text("group", "Group"),
      column.count("calls", "Calls"),
      column.time("mean_skew_ns", "Mean skew"),
      column.time("max_skew_ns", "Greatest"),
      column.number("last_rank", "Last most often", { show: (rank) => `rank ${rank}` }),
    ]),
  });
}
