// The view "Compare": two runs side by side, with the changes by category, operator and kernel.

import { partsView } from "../components/blocks.js";
import { missing, unlessMissing } from "../components/parts.js";
import { h, fill } from "../core/dom.js";
import { SourceError, titleOf } from "../core/source.js";
import { write } from "../core/state.js";

export const compare = { id: "compare", title: "Compare", kinds: ["run", "trace", "diff"], ...unlessMissing(reason, render) };

const CHANGES = partsView("compare", "Compare", [], [
  ...["mismatches", "step", ["categories", "diff_categories"], "diff_operators_device", "diff_kernels", "diff_operators_host"],
  ...["memory", "diff_fit", "compilation"],
]);
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
  if (run.kind === "diff") return changes(report);
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
    choice.map((item) => h("option", { value: item.name, selected: item === before }, titleOf(item))),
  );
  const swap = () => write({ run: before.name, before: after.name, rank: null }, { push: true });
  return h(
    "section",
    { class: "part controls", "aria-label": "Runs" },
    h("div", { class: "control" }, h("label", { for: "before" }, "Before"), select),
    h("div", { class: "control" }, h("span", {}, "After"), h("b", {}, titleOf(after))),
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
  fill(place, changes(known.compared));
}

function changes(compared) {
  return CHANGES.render({ report: compared });
}
