// The views in the order of the menu. A view is {id, title, kinds, render(context), missing?(context)}:
// `kinds` are the kinds of documents that it shows, and `missing` returns why it has nothing to show, or null.

import { compare } from "../report/compare.js";
import { distributed } from "../report/distributed.js";
import { kernels } from "../report/kernels.js";
import { launches } from "../report/launches.js";
import { memory } from "../report/memory.js";
import { modules } from "../report/modules.js";
import { operators } from "../report/operators.js";
import { overview } from "../report/overview.js";
import { precision } from "../report/precision.js";
import { timeline } from "../report/timeline.js";
import { snapshotChanges } from "../snapshot/changes.js";
import { held } from "../snapshot/held.js";
import { segments } from "../snapshot/segments.js";
import { history } from "../study/history.js";
import { studyRuns } from "../study/runs.js";
import { study } from "../study/verdict.js";
import { layers } from "../tradeoff/layers.js";
import { tradeoff } from "../tradeoff/tradeoff.js";
import { variants } from "../tradeoff/variants.js";

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
  history,
  tradeoff,
  variants,
  layers,
  held,
  segments,
  snapshotChanges,
];

/** The views of a kind of document. */
export function viewsFor(kind) {
  return VIEWS.filter((view) => view.kinds.includes(kind));
}
