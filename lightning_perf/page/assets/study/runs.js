// The view "Runs": the runs of a study one by one, in their blocks, in order, and summarized by arm.

import { part } from "../components/blocks.js";
import { unlessMissing } from "../components/parts.js";
import { armName } from "./arms.js";
import { blockLines, orderOfRuns } from "./run_order.js";

export const studyRuns = { id: "runs", title: "Runs", kinds: ["study"], ...unlessMissing(reason, render) };

function reason({ report }) {
  return report.state === "unfair" ? "The arms were not compared, because the comparison would be unfair." : null;
}

function render({ report }) {
  const name = (arm) => armName(report.arms, arm);
  const draw = (id) => part(report, id, { show: { arm: name, candidate: name } });
  return [draw("arms"), draw("metrics"), blockLines(report), orderOfRuns(report), draw("scatter"), draw("runs")];
}
