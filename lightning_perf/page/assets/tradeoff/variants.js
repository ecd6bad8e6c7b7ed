// The view "Variants": calls, outputs, cold start and settings of each variant.

import { part } from "../components/blocks.js";
import { missing } from "../components/parts.js";
import { h } from "../core/dom.js";
import { cellChoice, chosenCell } from "./limits.js";

export const variants = { id: "variants", title: "Variants", kinds: ["inference"], render };

function render({ report }) {
  const cell = chosenCell(report);
  const before = h("div", { class: "controls" }, cellChoice(report));
  return [
    cell ? part(report, `calls.${report.cells.indexOf(cell)}`, { before }) : missing("Nothing was measured."),
    ["outputs", "cold", "how", "machine"].map((name) => part(report, name)),
  ];
}
