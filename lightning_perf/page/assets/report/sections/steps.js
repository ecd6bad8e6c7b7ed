// The step time: step by step, on average, and by phase.

import { chart, chartText, ink } from "../../components/chart.js";
import * as column from "../../components/column.js";
import { notice, section, stack, swatch } from "../../components/parts.js";
import { table, tableSection } from "../../components/table.js";
import { h } from "../../core/dom.js";
import { largest } from "../../core/numbers.js";
import { link } from "../../core/state.js";
import * as format from "../../text/format.js";
import { label, per } from "../../text/labels.js";

const HEIGHT_PX = 400; // maximum; less if the table next to it is short

/** The time of each step by category, as a chart. */
export function steps(rank) {
  const { breakdown: times } = rank;
  const rows = times.categories.filter((row) => row.parent === null && row.per_step_ns?.some((time) => time > 0));
  const height = Math.min(HEIGHT_PX, 160 + 32 * times.categories.filter((row) => row.mean_ns > 0).length);
  const names = times.steps.map((step) => `${step.number}${step.complete ? "" : " (cut off)"}`);
  const axis = format.timeAxis(largest(times.steps.map((step) => step.wall_ns)));
  const draw = () => ({
    data: rows.map((row) => ({
      type: "bar",
      name: label("categories", row.name),
      x: names.map(chartText),
      y: row.per_step_ns.map((time) => time / axis.size_ns),
      customdata: row.per_step_ns.map((time, i) => `${format.duration(time)} of ${format.duration(times.steps[i].wall_ns)} in total`),
      hovertemplate: "%{fullData.name}: %{customdata}<extra>step %{x}</extra>",
      marker: { color: ink(row.name) },
    })),
    layout: { barmode: "stack", showlegend: false, xaxis: { title: "step", type: "category" }, yaxis: { title: axis.name } },
  });
  const outliers = times.outliers.map((step) =>
    notice(
      [
        `Step ${step.number} is an outlier: ${format.duration(step.wall_ns)}, ${format.change(step.excess_ns)}, mostly in ${label("categories", step.category)}. `,
        stepLink(rank, step.number),
      ],
    ),
  );
  return section(
    times.marked ? "Time of each step" : "Time of the recording",
    { definition: "step" },
    chart({ title: "Step time by category, with one bar per step. The table has the means.", draw, height }),
    outliers,
  );
}

function stepLink({ breakdown: times }, number) {
  const step = times.steps.find((item) => item.number === number);
  if (!step) return null;
  const end = step.start_ns + step.wall_ns;
  return h("a", { href: link({ view: "timeline", "time.from": step.start_ns, "time.to": end }) }, "Show it on the timeline");
}

/** The mean step time by category, as a table. */
export function breakdown(rank) {
  const { breakdown: times } = rank;
  const rows = times.categories.filter((row) => row.mean_ns > 0);
  const spread = times.averaged_steps > 1;
  const parts = rows
    .filter((row) => row.parent === null)
    .map((row) => ({
      label: label("categories", row.name),
      value: row.mean_ns,
      color: row.name,
      text: `${format.duration(row.mean_ns)} ${row.share === null ? "" : format.share(row.share)}`,
    }));
  const title = !times.marked ? "Time of the recording" : times.steps.length > 1 ? "Breakdown" : "Time of the step";
  return tableSection(title, {
    before: times.steps.length > 1 ? null : stack(parts, { title: "Step time by category", legend: false }),
    definition: "step-time-breakdown",
    aside: !times.marked ? "the whole recording" : spread ? `mean of ${times.averaged_steps} steps` : "one step",
    id: "breakdown",
    caption: "Step time by category",
    searchable: false,
    rows,
    columns: [
      column.text("category", "Category", {
        value: (row) => label("categories", row.name),
        show: (text, row) =>
          row.parent === null
            ? h("span", { class: "with-swatch" }, swatch(row.name), text)
            : h("span", { class: "sub" }, text),
        definition: "step-time-breakdown",
      }),
      column.time("mean_ns", "Time"),
      column.share("share", "Share", { bar: (row) => (row.parent === null ? row.share : null) }),
      ...(spread
        ? [
            column.time("max_ns", "Minimum–maximum", {
              show: (_, row) => `${format.duration(row.min_ns)} – ${format.duration(row.max_ns)}`,
            }),
          ]
        : []),
    ],
  });
}

/** The mean step time by phase, and by phase and category. */
export function phases(rank) {
  const { phases: crossed, breakdown: times } = rank;
  const wall = times.wall.mean_ns;
  const rows = crossed.phases.filter((phase) => phase.mean_ns > 0);
  const used = crossed.categories
    .map((name, i) => ({ name, i }))
    .filter(({ i }) => crossed.phases.some((phase) => phase.category_mean_ns[i] > 0));
  return section(
    "Phases",
    { definition: "phase-category", aside: per(rank) },
    stack(
      rows.map((phase) => ({
        label: label("phases", phase.name),
        value: phase.mean_ns,
        color: phase.name,
        text: `${format.duration(phase.mean_ns)} ${crossed.truncated ? "" : format.share(phase.share)}`,
      })),
      { title: "Time by phase" },
    ),
    h(
      "div",
      { class: "heat" },
      table({
        id: "phases",
        caption: "Time by phase and category",
        rows,
        columns: [
          column.text("phase", "Phase", { value: (row) => label("phases", row.name) }),
          column.time("mean_ns", "Time"),
          ...used.map(({ name, i }) =>
            column.time(name, label("categories", name), {
              csv: `${name}_ns`,
              value: (row) => row.category_mean_ns[i],
              show: (time) => format.duration(time || null),
              bar: (row) => row.category_mean_ns[i] / wall,
            }),
          ),
        ],
      }),
    ),
  );
}
