// The views in the order of the menu. A view is {id, title, kinds, render(context), missing?(context)}:
// `kinds` are the kinds of documents that it shows, and `missing` returns why it has nothing to show, or null.

import { partsView } from "../components/blocks.js";
import { compare } from "../report/compare.js";
import { kernels } from "../report/kernels.js";
import { modules } from "../report/modules.js";
import { operators } from "../report/operators.js";
import { overview } from "../report/overview.js";
import { timeline } from "../report/timeline.js";
import { held } from "../snapshot/held.js";
import { segments } from "../snapshot/segments.js";
import { tradeoff } from "../tradeoff/tradeoff.js";
import { variants } from "../tradeoff/variants.js";

const TRACE = ["run", "trace"];

const memory = partsView("memory", "Memory", TRACE, ["out_of_memory", "memory."], ({ report, rank }) => {
  if (report.out_of_memory?.length || rank?.memory) return null;
  if (!rank) return "No step was profiled, so memory was not recorded.";
  return "This recording has no allocator events. Record with `profile_memory=True`.";
});

const PARTS_OF_LAUNCHES = ["launches.", "idle.", "gaps.", "sync.", "regions.", ["loading.", "optimizer."]];
const launches = partsView("launches", "Launches & idle", TRACE, PARTS_OF_LAUNCHES, ({ rank }) => {
  if (!rank) return "No step was profiled, so there are no launches.";
  if (rank.breakdown.has_device) return null;
  return "This recording has no device work, because it covers the host only. There are no launches and no idle device.";
});

const PARTS_OF_RANKS = ["over_fit", "compared", "step_by_rank", "ranks", "skew", "communication."];
const distributed = partsView("distributed", "Distributed", TRACE, PARTS_OF_RANKS, ({ report, rank }) => {
  if (report.over_fit) return null;
  if (!rank) return "No step was profiled, so there are no ranks to compare.";
  if (report.ranks.length > 1 || rank.communication) return null;
  if (rank.metadata.world_size > 1) {
    return `This recording is from one of ${rank.metadata.world_size} ranks and has no collectives. To compare the ranks, analyze the folder with the traces of all of them.`;
  }
  return "The run has one rank, and no collective ran in it.";
});

const NO_RECORD =
  "This run has no record of its precision, because a trace does not contain the loss scale or gradients. Train with " +
  "`PerfCallback(precision=…)` and analyze the run's folder to see the loss scale, overflows and underflow by layer.";

const PARTS_OF_PRECISION = [
  ...["diagnosis", "mistakes", "setting", "loss_scale", "underflow", "numerics", "fp8", "shadow", "forecast"],
  ...["gain.", "casts."],
];
const precision = partsView("precision", "Precision", TRACE, PARTS_OF_PRECISION, ({ report, rank }) =>
  report.precision || report.forecast || report.shadow || report.fp8 || rank?.autocast?.count || rank?.amp_gain
    ? null
    : NO_RECORD,
);

const PARTS_OF_STUDY = [
  ...["refusal", "verdict", "context", "gates", "results", "forest", "predictions"],
  ...[["step_times", "train_times"], "accuracy", "differences"],
];
const study = partsView("study", "Verdict", ["study"], PARTS_OF_STUDY);

const PARTS_OF_RUNS = ["arms", "metrics", "blocks", "order", "scatter", "runs"];
const studyRuns = partsView("runs", "Runs", ["study"], PARTS_OF_RUNS, ({ report }) =>
  report.state === "unfair" ? "The arms were not compared, because the comparison would be unfair." : null,
);

const layers = partsView("layers", "Layers", ["inference"], ["forward_pass", "least_time", "layers"], ({ report }) =>
  report.count ? null : "The operations of the original could not be counted.",
);

const VIEWS = [
  overview,
  timeline,
  operators,
  kernels,
  modules,
  memory,
  launches,
  distributed,
  precision,
  compare,
  study,
  studyRuns,
  partsView("history", "History", ["history"], ["headline", "rows"]),
  tradeoff,
  variants,
  layers,
  held,
  segments,
  partsView("changes", "Changes", ["snapshot-diff"], ["changes"]),
];

/** The views of a kind of document. */
export function viewsFor(kind) {
  return VIEWS.filter((view) => view.kinds.includes(kind));
}
