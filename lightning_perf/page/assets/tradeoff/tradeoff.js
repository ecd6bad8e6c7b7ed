// The view "Trade-off": accuracy against latency and size, and the variant to deploy.

import { part } from "../components/blocks.js";
import { legend, missing, notes, notice, section } from "../components/parts.js";
import { fill, h } from "../core/dom.js";
import * as format from "../text/format.js";
import { cellChoice, cellText, chosenCell, chosenLimits, keeps, limitControls } from "./limits.js";
import { sizeLegend, tradeoffChart } from "./tradeoff_chart.js";

export const tradeoff = { id: "tradeoff", title: "Trade-off", kinds: ["inference"], render };

function render({ report }) {
  const cell = chosenCell(report);
  if (!cell) return [part(report, "recommendation"), missing("Nothing was measured."), part(report, "failures")];
  const limits = () => chosenLimits(report);
  const picture = tradeoffChart(report, cell, limits);
  const rows = h("div", {});
  const status = h("p", { class: "aside", role: "status" });
  const filter = () => {
    const kept = new Set(report.rows.filter((row) => keeps(row, cell, limits())).map((row) => row.variant));
    const none = Object.values(limits()).every((limit) => limit === null);
    fill(
      status,
      none
        ? "Without a limit, all variants are shown."
        : `${format.countOf(kept.size, "variant")} of ${report.rows.length} within the limits.`,
    );
    fill(rows, part(report, `variants.${report.cells.indexOf(cell)}`, { keeps: (name) => kept.has(name) }));
  };
  const changed = () => {
    picture?.redraw();
    filter();
  };
  filter();
  return [
    part(report, "recommendation"),
    part(report, "context"),
    notes(report.notes),
    section(
      "Accuracy against latency",
      {
        definition: "trade-off",
        aside: `${cellText(cell)}. Two measurements of the original differ by ${format.share(cell.tie)}`,
      },
      h("div", { class: "controls" }, cellChoice(report), limitControls(report, changed)),
      status,
      legend([
        { label: "the original", color: "original" },
        { label: "unbeaten", color: "accent" },
        { label: "beaten by another", color: "beaten" },
        { label: "ringed: recommended", color: "good" },
      ]),
      sizeLegend(report),
      h(
        "p",
        { class: "aside" },
        "Point at a variant to see its name and figures. If there are many, only the unbeaten ones, the original and the recommended one have names.",
      ),
      picture ?? notice("Nothing was measured with this batch size and number of threads."),
    ),
    rows,
    part(report, "failures"),
  ];
}
