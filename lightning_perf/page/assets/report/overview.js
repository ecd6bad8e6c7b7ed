// The view "Overview": the verdict first, then its evidence, the largest parts of the step, and the views without data.

import { partsView } from "../components/blocks.js";
import { suggestion } from "../components/copy.js";
import { facts, section } from "../components/parts.js";

const ABOVE = ["verdict", "notes", "summary.", "trust", "findings", "fit_findings", ["steps.", "breakdown."], "held_back"];
const OTHERS = ["phases.", "arithmetic.", "language_model.", "captures", "gpu_health", "fit_time", "compilation", "step_times", "windows"];

const kinds = ["run", "trace"];
const above = partsView("overview", "Overview", kinds, [...ABOVE, ...OTHERS]);
const below = partsView("overview", "Overview", kinds, ["sources"]);

export const overview = { ...above, render: (context) => [above.render(context), notRecorded(context), below.render(context)] };

/** The views without data, with the reason and how to record it. */
function notRecorded(context) {
  const empty = context.empty.filter(({ view }) => view.id !== "compare");
  if (empty.length === 0) return null;
  return section(
    `Not recorded (${empty.length})`,
    { aside: "what to record to see these views" },
    facts(empty.map(({ view, reason }) => [view.title, suggestion(reason)])),
  );
}
