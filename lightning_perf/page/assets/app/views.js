// The views in the order of the menu. A view is {id, title, kinds, render(context), missing?(context)}:
// `kinds` are the kinds of documents that it shows, and `missing` returns why it has nothing to show, or null.

import { partsView } from "../components/blocks.js";
import { compare } from "../report/compare.js";
import { overview } from "../report/overview.js";
import { timeline } from "../report/timeline.js";
import { tradeoff } from "../tradeoff/tradeoff.js";
import { variants } from "../tradeoff/variants.js";

const TRACE = ["run", "trace"];

const PRECISION = [
  ...["diagnosis", "mistakes", "setting", "loss_scale", "underflow", "numerics", "fp8", "shadow", "forecast"],
  ...["gain.", "casts."],
];
const LAUNCHES = ["launches.", "idle.", "gaps.", "sync.", "regions.", ["loading.", "optimizer."]];
const RANKS = ["over_fit", "compared", "step_by_rank", "ranks", "skew", "communication."];
const STUDY = [
  ...["refusal", "verdict", "context", "gates", "results", "forest", "predictions"],
  ...[["step_times", "train_times"], "accuracy", "differences"],
];

const VIEWS = [
  overview,
  timeline,
  partsView("operators", "Operators", TRACE, ["operators.", "call_tree."]),
  partsView("kernels", "Kernels", TRACE, ["kernels."]),
  partsView("modules", "Modules", TRACE, ["modules."]),
  partsView("memory", "Memory", TRACE, ["out_of_memory", "memory."]),
  partsView("launches", "Launches & idle", TRACE, LAUNCHES),
  partsView("distributed", "Distributed", TRACE, RANKS),
  partsView("precision", "Precision", TRACE, PRECISION),
  compare,
  partsView("study", "Verdict", ["study"], STUDY),
  partsView("runs", "Runs", ["study"], ["arms", "metrics", "blocks", "order", "scatter", "runs"]),
  partsView("history", "History", ["history"], ["headline", "rows"]),
  tradeoff,
  variants,
  partsView("layers", "Layers", ["inference"], ["forward_pass", "least_time", "layers"]),
  partsView("held", "Memory", ["snapshot"], ["held"]),
  partsView("segments", "Segments", ["snapshot"], ["segments"]),
  partsView("changes", "Changes", ["snapshot-diff"], ["changes"]),
];

/** The views of a kind of document. */
export function viewsFor(kind) {
  return VIEWS.filter((view) => view.kinds.includes(kind));
}
