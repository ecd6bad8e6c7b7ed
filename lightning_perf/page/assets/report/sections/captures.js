// Captures: windows that the profiler recorded because steps turned slow or because the user asked for them.

import { section } from "../../components/parts.js";
import { h } from "../../core/dom.js";
import * as format from "../../text/format.js";
import { changesPart } from "./changes.js";

/** The captures with their steps and the differences from the scheduled window; null without captures. */
export function capturesPart(captures) {
  if (!captures?.length) return null;
  return section(
    "Captures",
    { definition: "capture", aside: "recorded outside of the schedule" },
    h("ol", { class: "findings captures" }, captures.map(one)),
  );
}

function one(capture, i) {
  const { slowdown, step_ns: step, recorded_steps: recorded } = capture;
  const facts = [
    slowdown ? `usual ${format.duration(slowdown.usual_ns)}, limit ${format.duration(slowdown.limit_ns)}` : null,
    recorded ? `${format.countOf(recorded, "step")} recorded, ${format.duration(step)} each` : "no complete step recorded",
    capture.rank === null
      ? null
      : `rank ${capture.rank}${capture.ranks.length > 1 ? ` of ${capture.ranks.length}` : ""}`,
  ];
  return h(
    "li",
    { class: `finding ${slowdown ? "moderate" : "low"}` },
    h(
      "div",
      { class: "finding-head" },
      h("h3", {}, `Step ${format.count(capture.step)}`),
      h("span", { class: "severity" }, capture.trigger),
      h("span", { class: "aside" }, facts.filter(Boolean).join(" · ")),
    ),
    capture.evidence.map((sentence) => h("p", {}, sentence)),
    capture.diff ? details(capture.diff, i) : null,
    h("p", { class: "aside" }, h("code", {}, capture.folder)),
  );
}

function details(diff, i) {
  const part = (name, title, noun, labels) =>
    diff[name] && changesPart({ id: `capture-${i}-${name}`, title, changes: diff[name], noun, labels, bars: false });
  const box = h("details", {}, h("summary", {}, "Differences from the scheduled window"));
  // Built when the reader opens it, because a run may have many captures with thousands of operators each.
  const build = () => {
    if (box.childElementCount > 1) return;
    box.append(
      ...[
        part("categories", "By category", "category", "categories"),
        part("kernels", "Kernels", "kernel", null),
        part("operators_host", "Operators on the host", "operator", null),
      ].filter(Boolean),
    );
  };
  box.addEventListener("toggle", build);
  return box;
}
