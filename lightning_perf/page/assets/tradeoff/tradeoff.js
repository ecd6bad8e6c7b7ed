// The view "Trade-off": accuracy against latency and size, and the variant to deploy.

import { part } from "../components/blocks.js";
import * as column from "../components/column.js";
import { legend, missing, notes, notice, section } from "../components/parts.js";
import { table } from "../components/table.js";
import { fill, h } from "../core/dom.js";
import * as format from "../text/format.js";
import { cellChoice, cellText, chosenCell, chosenLimits, keeps, latencyOf, limitControls, recommendedFirst } from "./limits.js";
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
    const kept = report.rows.filter((row) => keeps(row, cell, limits()));
    const none = Object.values(limits()).every((limit) => limit === null);
    fill(
      status,
      none
        ? "Without a limit, all variants are shown."
        : `${format.countOf(kept.length, "variant")} of ${report.rows.length} within the limits.`,
    );
    fill(rows, variantTable(report, cell, limits()));
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
    section("Variants", { definition: "variant", aside: cellText(cell) }, rows),
    part(report, "failures"),
  ];
}

function variantTable(report, cell, limits) {
  const time = (key, title) =>
    column.timeMs(key, title, { value: (row) => latencyOf(row, cell)?.[key] ?? null, definition: "latency" });
  const recommended = report.recommendation?.variant;
  const columns = [
    column.text("variant", "Variant", {
      show: (name, row) =>
        h(
          "span",
          { class: "with-swatch" },
          h("span", { class: "name" }, name),
          name === recommended ? h("span", { class: "outcome good" }, "recommended") : null,
          row === report.rows[0] ? h("span", { class: "outcome" }, "original") : null,
        ),
    }),
    column.text("limits", "Limits", {
      csv: "within_limits",
      value: (row) => row.reason ?? (keeps(row, cell, limits) ? "kept" : "broken"),
      show: (value, row) =>
        row.reason === null
          ? h("span", { class: `outcome ${value === "kept" ? "good" : "bad"}` }, value)
          : h("span", { class: "outcome warning", title: value }, "not measured"),
    }),
    time("p50_ms", "p50"),
    time("p90_ms", "p90"),
    column.number("speedup", "Speed-up", {
      value: (row) => speedup(row, cell),
      show: (value, row) => withInterval(value, row, cell),
      definition: "speed-up",
    }),
    column.share("accuracy", "Accuracy", {
      value: (row) => (row.accuracy ? row.accuracy.correct / row.accuracy.n : null),
      definition: "accuracy-of-a-variant",
    }),
    column.number("drop", "Drop", {
      value: (row) => row.accuracy?.drop_points ?? null,
      show: drop,
      definition: "accuracy-of-a-variant",
    }),
    column.bytes("size", "Size", { value: (row) => row.size_bytes }),
    column.text("best", "Best in", {
      csv: "unbeaten_in",
      value: (row) => unbeaten(cell, row),
      definition: "unbeaten",
    }),
  ];
  return table({ id: "variants", caption: "Variants", columns, rows: recommendedFirst(report, report.rows) });
}

function speedup(row, cell) {
  const latency = latencyOf(row, cell);
  return latency && (latency.speedup === null ? 1 : latency.speedup.value);
}

function withInterval(value, row, cell) {
  const found = latencyOf(row, cell)?.speedup;
  const ends = found && found.low !== null ? ` (${format.digits(found.low)} – ${format.digits(found.high)})` : "";
  return `${format.ratio(value)}${ends}`;
}

function drop(points) {
  if (points === null) return format.NOT_AVAILABLE;
  return Number(points.toFixed(2)) === 0 ? "0" : `${points.toFixed(2).replace("-", "−")} pt`;
}

function unbeaten(cell, row) {
  const [fast, small] = [cell.front.includes(row.variant), cell.size_front.includes(row.variant)];
  return fast && small ? "time and size" : fast ? "time" : small ? "size" : null;
}
