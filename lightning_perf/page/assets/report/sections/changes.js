// The changes from one recording to another, as charts and tables.

import { chart, chartText, ink } from "../../components/chart.js";
import * as column from "../../components/column.js";
import { legend, notice, section } from "../../components/parts.js";
import { table } from "../../components/table.js";
import { h } from "../../core/dom.js";
import { largest } from "../../core/numbers.js";
import * as format from "../../text/format.js";
import { label, place } from "../../text/labels.js";

const MOST_BARS = 12;
const BAR_PX = 24;

/** The step time of both recordings by category, as two bars. */
export function categoriesSideBySide({ categories }) {
  const rows = categories.rows
    .filter((row) => row.before_ns || row.after_ns)
    .toSorted((a, b) => place("categories", a.name) - place("categories", b.name));
  const whole = rows.filter((row) => !/^(memcpy|runtime)_/.test(row.name));
  const totals = ["before_ns", "after_ns"].map((key) => whole.reduce((sum, row) => sum + (row[key] ?? 0), 0));
  const axis = format.timeAxis(largest(totals));
  const draw = () => ({
    data: rows.map((row) => ({
      type: "bar",
      orientation: "h",
      name: label("categories", row.name),
      y: ["before", "after"],
      x: [row.before_ns, row.after_ns].map((time) => (time ?? 0) / axis.size_ns),
      customdata: [row.before_ns, row.after_ns].map(
        (time, i) => `${format.duration(time)} of ${format.duration(totals[i])} in total`,
      ),
      hovertemplate: "%{fullData.name}: %{customdata}<extra>%{y}</extra>",
      marker: { color: ink(colorOf(row.name)), line: { width: 1, color: ink("panel") } },
    })),
    layout: {
      barmode: "stack",
      showlegend: false,
      xaxis: { title: `${axis.name} per step` },
      yaxis: { autorange: "reversed" },
    },
  });
  return [
    legend(rows.map((row) => ({ label: label("categories", row.name), color: colorOf(row.name) }))),
    chart({ title: "Step time by category, before and after. The table has the figures.", draw, height: 170 }),
  ];
}

/**
 * A table of changes, with its largest ones as bars.
 *
 * @param id The table's name.
 * @param title Its title.
 * @param changes A table of the diff.
 * @param noun The noun for a row.
 * @param labels The table of labels for the rows' names.
 * @param total Number of rows if the document has only the first ones.
 * @param bars Whether the largest changes are drawn.
 * @param unit Unit of the total change: "per step" or "of the fit".
 */
export function changesPart({ id, title, changes, noun, labels = null, definition, total = null, bars = true, unit = "per step" }) {
  const rows = changes.rows.filter((row) => row.before_ns || row.after_ns);
  if (rows.length === 0) return null;
  return section(
    title,
    { definition, aside: `${format.change(changes.change_ns)} ${unit} in total` },
    bars ? largestChanges(rows, noun) : null,
    total > changes.rows.length
      ? notice(`This table lists the ${format.count(changes.rows.length)} largest of ${format.count(total)} changes.`)
      : null,
    table({ id, caption: title, columns: columnsOf(rows, noun, labels), rows }),
  );
}

/** The outcome of a time (faster, slower, same), in its color. */
function outcome(verdict) {
  return verdict === "incomparable" ? null : h("span", { class: `outcome ${verdict}` }, verdict);
}

function largestChanges(rows, noun) {
  const shown = rows.filter((row) => row.verdict !== "same").slice(0, MOST_BARS);
  if (shown.length < 2) return null;
  const comparable = rows.every((row) => row.verdict !== "incomparable");
  const draw = () => ({
    data: [
      {
        type: "bar",
        orientation: "h",
        y: shown.map((_, i) => i),
        x: shown.map((row) => row.change_ns / 1e6),
        customdata: shown.map((row) => [
          chartText(nameOf(row)),
          format.change(row.change_ns),
          format.duration(row.before_ns),
          format.duration(row.after_ns),
        ]),
        hovertemplate: "%{customdata[0]}<br>%{customdata[1]}: %{customdata[2]} → %{customdata[3]}<extra></extra>",
        marker: { color: shown.map((row) => ink(comparable ? (row.change_ns > 0 ? "high" : "good") : "ink-soft")) },
      },
    ],
    layout: {
      xaxis: { title: comparable ? "change in ms per step (left is faster)" : "change in ms per step", zerolinecolor: ink("ink-soft") },
      yaxis: {
        autorange: "reversed",
        tickvals: shown.map((_, i) => i),
        ticktext: shown.map((row) => chartText(shortened(nameOf(row)))),
        showgrid: false,
      },
    },
  });
  return chart({
    title: `The largest changes by ${noun}. The table below has all of them.`,
    draw,
    height: 70 + BAR_PX * shown.length,
  });
}

function columnsOf(rows, noun, labels) {
  const time = (key, title) => column.time(key, title, { csv: `${key}_per_step` });
  const calls = (key, title) => column.count(key, title, { csv: `${key}_per_step` });
  const most = largest(rows.map((row) => Math.abs(row.change_ns)), 1);
  const names = {
    csv: noun,
    code: labels === null,
    value: (row) => (labels && row.name !== null ? label(labels, row.name) : nameOf(row)),
  };
  const title = noun[0].toUpperCase() + noun.slice(1);
  return [
    labels ? column.colored("name", title, (row) => colorOf(row.name), names) : column.text("name", title, names),
    time("before_ns", "Before"),
    time("after_ns", "After"),
    column.number("change_ns", "Change", {
      csv: "change_ns_per_step",
      show: format.change,
      bar: (row) => Math.abs(row.change_ns) / most,
    }),
    column.number("ratio", "Ratio", { show: format.ratio }),
    ...(rows.some((row) => row.before_calls !== null || row.after_calls !== null)
      ? [calls("before_calls", "Calls before"), calls("after_calls", "after")]
      : []),
    column.text("verdict", "Outcome", { csv: "outcome", show: outcome }),
  ];
}

function nameOf(row) {
  return row.name ?? "(no operator)";
}

/** A name on one line. A long one loses its middle, because names of kernels differ at their ends. */
function shortened(text) {
  const room = innerWidth < 700 ? 18 : 44;
  return text.length <= room ? text : `${text.slice(0, room / 2)}…${text.slice(-room / 2 + 1)}`;
}

// A part of a category has the category's color.
function colorOf(name) {
  return ["memcpy", "runtime"].find((parent) => name?.startsWith(`${parent}_`)) ?? name ?? "unknown";
}
