// The views, in the order of the menu. A view is {id, title, kinds, render(context), missing?(context)}:
// `kinds` are the kinds of documents it shows, `missing` says why it has nothing to show, or null.

import { compare } from "./views/compare.js";
import { distributed } from "./views/distributed.js";
import { kernels } from "./views/kernels.js";
import { launches } from "./views/launches.js";
import { layers } from "./views/layers.js";
import { memory } from "./views/memory.js";
import { modules } from "./views/modules.js";
import { operators } from "./views/operators.js";
import { overview } from "./views/overview.js";
import { precision } from "./views/precision.js";
import { study } from "./views/study.js";
import { studyRuns } from "./views/study_runs.js";
import { timeline } from "./views/timeline.js";
import { tradeoff } from "./views/tradeoff.js";
import { variants } from "./views/variants.js";

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
  tradeoff,
  variants,
  layers,
];

/** The views of a kind of document. */
export function viewsFor(kind) {
  return VIEWS.filter((view) => view.kinds.includes(kind));
}
