// The view "Compare": two runs side by side, with the changes by category, operator and kernel.

import * as column from "../components/column.js";
import { chartAndTable, facts, missing, notes, notice, section, tiles, unlessMissing } from "../components/parts.js";
import { table } from "../components/table.js";
import { h, fill } from "../core/dom.js";
import { SourceError } from "../core/source.js";
import { write } from "../core/state.js";
import * as format from "../text/format.js";
import { categoriesSideBySide, changesPart, outcome } from "./sections/changes.js";

export const compare = { id: "compare", title: "Compare", kinds: ["run", "trace", "diff"], ...unlessMissing(reason, render) };

const DIFFERENT = ["run", "trace"];
let known = { key: null, compared: null }; // the last one, so that a change of theme needs no new request
let request = null;

function reason({ source, runs, run }) {
  if (run.kind === "diff") return null;
  if (!source.live) {
    return "This file holds one run. To compare two runs, write another file with `lightning-perf diff A B --html out.html`, or choose any two runs in TensorBoard.";
  }
  return others(runs, run).length ? null : "There is no other run to compare this one with.";
}

function render(context) {
  const { report, run, runs, state, source } = context;
  if (run.kind === "diff") return changes(report, report);
  const choice = others(runs, run);
  const before = choice.find((item) => item.name === state.before) ?? null;
  const place = h("div", { class: "results" });
  if (before) show(place, source, before, run);
  else if (state.before) fill(place, missing(`The run ${state.before} does not exist (any more). Choose another one.`));
  else fill(place, missing("Choose the run from before the change. The run selected above is the one after it."));
  return [chooser(choice, before, run), place];
}

function others(runs, run) {
  return runs.filter((item) => DIFFERENT.includes(item.kind) && item.name !== run.name);
}

function chooser(choice, before, after) {
  const select = h(
    "select",
    { id: "before", on: { change: (event) => write({ before: event.target.value }, { push: true }) } },
    before ? null : h("option", { value: "", selected: true }, "choose a run …"),
    choice.map((item) => h("option", { value: item.name, selected: item === before }, item.name)),
  );
  const swap = () => write({ run: before.name, before: after.name, rank: null }, { push: true });
  return h(
    "section",
    { class: "part controls", "aria-label": "Runs" },
    h("div", { class: "control" }, h("label", { for: "before" }, "Before"), select),
    h("div", { class: "control" }, h("span", {}, "After"), h("b", {}, after.name)),
    before ? h("button", { type: "button", on: { click: swap } }, "Swap") : null,
  );
}

async function show(place, source, before, after) {
  const key = [before, after].map((item) => `${item.name}\n${item.updated_s}`).join("\n\n");
  request?.abort();
  if (known.key !== key) {
    const mine = new AbortController();
    request = mine;
    const bar = h("progress", { max: 1, "aria-label": "Comparing" });
    const status = h("p", { role: "status" }, "Comparing …");
    fill(place, h("div", { class: "waiting" }, bar, status));
    const progress = ({ done, message }) => {
      if (done !== null) bar.value = done;
      fill(status, message);
    };
    try {
      known = { key, compared: await source.diff(before.name, after.name, { progress, signal: mine.signal }) };
    } catch (error) {
      if (error.name === "AbortError" || request !== mine) return;
      if (!(error instanceof SourceError)) throw error;
      fill(place, missing(error.message));
      return;
    }
    if (request !== mine) return;
  }
  fill(place, changes(known.compared, { before: [before.name], after: [after.name] }));
}

function changes(compared, { before, after }) {
  const { diff, headline, mixed_precision: check, truncated = {} } = compared;
  const { mismatches = [], unchecked = [], throughput = null } = compared.comparability ?? {};
  const { step } = diff;
  return [
    mismatches.length ? incomparable(mismatches) : null,
    section(
      "Step time",
      { definition: "difference-of-two-runs" },
      h(
        "p",
        { class: "headline" },
        mismatches.length ? null : outcome(step.verdict),
        ` ${headline}.${mismatches.length ? " Neither is called faster." : ""}`,
      ),
      tiles([
        { label: "Before", value: format.duration(step.before_ns), note: `mean of ${steps(diff.before_steps)}` },
        { label: "After", value: format.duration(step.after_ns), note: `mean of ${steps(diff.after_steps)}` },
        { label: "Change", value: format.change(step.change_ns) },
        { label: "After / before", value: format.ratio(step.ratio) },
      ]),
      throughput ? samples(throughput) : null,
      check ? prediction(check) : null,
      facts([
        ["Before", names(before)],
        ["After", names(after)],
      ]),
      h(
        "p",
        { class: "aside" },
        "One pair of recordings shows one change. To find out whether it is more than noise, repeat the runs with lightning-perf study.",
      ),
      unchecked.length
        ? h("p", { class: "aside" }, `Not recorded by both, so not checked: ${unchecked.join(", ")}.`)
        : null,
    ),
    notes(compared.notes),
    chartAndTable(
      section("Step time by category", { definition: "step-time-breakdown" }, categoriesSideBySide(diff)),
      changesPart({
        id: "diff-categories",
        title: "By category",
        changes: diff.categories,
        noun: "category",
        labels: "categories",
        definition: "step-time-breakdown",
        bars: false,
      }),
    ),
    part(diff, truncated, "operators_device", "Operators, device self time", "operator", "device-self-time"),
    part(diff, truncated, "kernels", "Kernels, copies and memsets", "kernel", "kernel"),
    part(diff, truncated, "operators_host", "Operators, host self time", "operator", "host-self-time"),
    (compared.memory ?? []).map((memory) => memoryChanges(memory)),
    compared.fit ? fitChanges(compared.fit) : null,
    compared.compilation
      ? section("Compilation", { definition: "compilation" }, h("p", {}, compared.compilation.summary))
      : null,
  ];
}

function memoryChanges({ device, before_bytes, after_bytes, parts }) {
  const name = device === null ? "host" : `device ${device}`;
  const change = (row) => row.after_bytes - row.before_bytes;
  return section(
    `Memory at the peak, ${name}`,
    { definition: "peak-memory", aside: `${format.bytes(before_bytes)} before, ${format.bytes(after_bytes)} after` },
    table({
      id: `diff-memory-${device ?? "host"}`,
      caption: `Memory at the peak of ${name}, before and after`,
      rows: parts,
      columns: [
        column.text("category", "Category"),
        column.bytes("before_bytes", "Before"),
        column.bytes("after_bytes", "After"),
        column.number("change_bytes", "Change", {
          value: change,
          show: (value) => `${value > 0 ? "+" : value < 0 ? "\u2212" : ""}${format.bytes(Math.abs(value))}`,
        }),
      ],
    }),
  );
}

function fitChanges({ groups, first_step_before_ns: before, first_step_after_ns: after, steps_before, steps_after }) {
  return [
    changesPart({
      id: "diff-fit",
      title: "Time of the whole fit",
      changes: groups,
      noun: "part",
      definition: "time-of-the-whole-fit",
      bars: false,
      unit: "of the fit",
    }),
    facts([
      ["Steps", `${format.count(steps_before)} before, ${format.count(steps_after)} after`],
      before && after
        ? ["Time to the first step", `${format.duration(before)} before, ${format.duration(after)} after`]
        : null,
    ]),
  ];
}

function part(diff, truncated, name, title, noun, definition) {
  const id = `diff-${name.replaceAll("_", "-")}`;
  const total = truncated[name] ?? null;
  return diff[name] && changesPart({ id, title, changes: diff[name], noun, definition, total });
}

function incomparable(mismatches) {
  const aspects = mismatches.map(({ aspect }) => aspect);
  const last = aspects.pop();
  const named = aspects.length ? `${aspects.join(", ")} and ${last}` : last;
  return section(
    "Not comparable",
    {},
    notice(`The recordings differ in ${named}. Their times do not show which one is faster.`, "note"),
    facts(
      mismatches.map(({ aspect, before, after }) => [
        aspect[0].toUpperCase() + aspect.slice(1),
        [`${before} before, ${after} after`],
      ]),
    ),
  );
}

function samples({ before_samples, after_samples, before_per_s, after_per_s }) {
  const rate = (value, number) => `${format.count(value)} samples/s (${format.countOf(number, "sample")} per step)`;
  return notice(
    `Throughput: ${rate(before_per_s, before_samples)} before, ${rate(after_per_s, after_samples)} after, ${format.ratio(after_per_s / before_per_s)}.`,
    "note",
  );
}

function prediction({ predicted: [low, high], measured, held }) {
  const outcomes = held ? "as predicted" : "not as predicted";
  return notice(
    `Predicted speed-up of mixed precision: ${format.ratio(low)} to ${format.ratio(high)}. Measured: ${format.ratio(measured)}, ${outcomes}.`,
    held ? "good" : "note",
  );
}

function names(sources) {
  return sources.map((source) => h("code", {}, source, " "));
}

function steps(number) {
  return format.countOf(number, "step");
}
