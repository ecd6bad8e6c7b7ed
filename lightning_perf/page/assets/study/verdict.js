// The view "Verdict": the arms of a study compared, with the changes, their intervals, and every run as a point.

import { part } from "../components/blocks.js";
import { columns, notes } from "../components/parts.js";
import { h } from "../core/dom.js";
import { armLegend, armName } from "./arms.js";
import { accuracyBoxes, timeBoxes } from "./box_plots.js";
import { forest, predictions } from "./forest_plot.js";

export const study = { id: "study", title: "Verdict", kinds: ["study"], render };

function render({ report }) {
  if (report.state === "unfair") return [part(report, "refusal"), part(report, "differences")];
  const show = { candidate: (name) => armName(report.arms, name) };
  return [
    report.candidates.map((candidate) => verdict(candidate, report)),
    part(report, "context"),
    notes(report.notes),
    part(report, "gates"),
    part(report, "results"),
    forest(report),
    predictions(report),
    report.arms.length > 1 ? armLegend(report.arms) : null,
    columns(timeBoxes(report)),
    accuracyBoxes(report),
    part(report, "differences", { show }),
  ];
}

function verdict({ verdict: { kind, headline, details, next } }) {
  const row = (name, ...content) => [h("dt", {}, name), h("dd", {}, content)];
  return h(
    "section",
    { class: "part", "aria-label": "Verdict" },
    h(
      "dl",
      { class: "verdict" },
      row("Verdict", h("span", { class: `outcome ${kind}` }, kind), h("b", { class: "headline" }, ` ${headline}`)),
      details.length
        ? row(
            "Details",
            h(
              "ul",
              { class: "sentences" },
              details.map((line) => h("li", {}, line)),
            ),
          )
        : null,
      next ? [h("dt", {}, "Next"), h("dd", { class: "next" }, next)] : null,
    ),
  );
}
