// The view "Verdict": the arms of a study compared, with the changes, their intervals, and every run as a point.

import { columns, notes, notice, section } from "../components/parts.js";
import { h } from "../core/dom.js";
import * as format from "../text/format.js";
import { armLegend } from "./arms.js";
import { accuracyBoxes, timeBoxes } from "./box_plots.js";
import { forest, predictions } from "./forest_plot.js";
import { differences, gates, results, unfairRows } from "./tables.js";

export const study = { id: "study", title: "Verdict", kinds: ["study"], render };

function render({ report }) {
  if (report.state === "unfair") return unfair(report);
  return [
    report.candidates.map((candidate) => verdict(candidate, report)),
    h("p", { class: "aside" }, context(report)),
    notes(report.notes),
    gates(report),
    results(report),
    forest(report),
    predictions(report),
    report.arms.length > 1 ? armLegend(report.arms) : null,
    columns(timeBoxes(report)),
    accuracyBoxes(report),
    differences(report),
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

function context({ arms, blocked, hardware, treatment }) {
  const used = [...new Set(arms.map((arm) => arm.used))];
  return [
    used.length === 1
      ? `${format.countOf(used[0], "run")} per arm`
      : `runs: ${arms.map((arm) => `${arm.used} of ${arm.name}`).join(", ")}`,
    blocked ? "in blocks" : "not in blocks",
    treatment.length ? `tested: ${treatment.join(", ")}` : null,
    hardware.join(", ") || "hardware not recorded",
  ]
    .filter(Boolean)
    .join(" · ");
}

function unfair(refusal) {
  return [
    section(
      "Refused as unfair",
      { definition: "fair-comparison" },
      notice(refusal.message, "high"),
      h(
        "p",
        {},
        "If you test one of these facts, name it with --treatment. If a difference does not matter, name it with --allow.",
      ),
    ),
    unfairRows(refusal),
  ];
}
