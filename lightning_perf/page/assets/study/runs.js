// The view "Runs": the runs of a study one by one, in their blocks, in order, and summarized by arm.

import { unlessMissing } from "../components/parts.js";
import { blockLines, orderOfRuns } from "./run_order.js";
import { armsPart, runs, scatter, summaries } from "./tables.js";

export const studyRuns = { id: "runs", title: "Runs", kinds: ["study"], ...unlessMissing(reason, render) };

function reason({ report }) {
  return report.state === "unfair" ? "The arms were not compared, because the comparison would be unfair." : null;
}

function render(context) {
  const { report } = context;
  return [armsPart(report), summaries(report), blockLines(report), orderOfRuns(report), scatter(report), runs(report)];
}
