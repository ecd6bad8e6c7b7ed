// The choice of a run: a list with date, kind, step time and verdict that the reader can filter.

import { fill, h } from "../core/dom.js";
import { titleOf } from "../core/source.js";
import * as format from "../text/format.js";

const KINDS = { run: "run", trace: "trace", study: "study", inference: "trade-off", diff: "diff" };

/** The picker: {element, show(runs, run, missing)}. `choose(name)` is called with the run that the reader chooses. */
export function runPicker(choose) {
  let runs = [];
  let current = null;
  const button = h("button", { type: "button", id: "run", class: "run-button", "aria-haspopup": "dialog", "aria-expanded": "false" });
  const search = h("input", { type: "search", placeholder: "Filter runs", "aria-label": "Filter runs", spellcheck: "false" });
  const list = h("ul", { class: "run-list" });
  const count = h("p", { class: "aside", role: "status" });
  const panel = h(
    "div",
    { class: "run-panel", id: "run-panel", role: "dialog", "aria-label": "Runs", hidden: true },
    search,
    count,
    list,
  );
  const element = h("div", { class: "run-picker" }, button, panel);

  function open(wanted) {
    panel.hidden = !wanted;
    button.setAttribute("aria-expanded", String(wanted));
    if (!wanted) return;
    search.value = "";
    draw();
    search.focus();
    list.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  }

  function draw() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = nested(runs).filter(({ run }) => words.every((word) => text(run).toLowerCase().includes(word)));
    fill(list, found.map(({ run, depth }) => entry(run, depth)));
    fill(count, found.length === runs.length ? format.countOf(runs.length, "run") : `${found.length} of ${format.countOf(runs.length, "run")}`);
  }

  function entry(run, depth) {
    const facts = [KINDS[run.kind] ?? run.kind, date(run.updated_s), run.step_ns ? `${format.duration(run.step_ns)} per step` : null];
    return h(
      "li",
      { class: depth ? "nested" : null },
      h(
        "button",
        { type: "button", "aria-current": run.name === current ? "true" : null, "data-run": run.name, on: { click: () => pick(run) } },
        h("b", {}, titleOf(run)),
        h("span", { class: "aside" }, facts.filter(Boolean).join(" · ")),
        run.verdict ? h("span", { class: "run-verdict" }, run.verdict) : null,
      ),
    );
  }

  function pick(run) {
    open(false);
    button.focus();
    if (run.name !== current) choose(run.name);
  }

  // The arrow keys move through the list, and Escape closes it.
  function press(event) {
    const entries = [search, ...list.querySelectorAll("button")];
    const at = entries.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1 }[event.key];
    if (event.key === "Escape") {
      open(false);
      button.focus();
    } else if (event.key === "Enter" && document.activeElement === search) {
      entries[1]?.click();
    } else if (to !== undefined && entries[to]) {
      entries[to].focus();
    } else {
      return;
    }
    event.preventDefault();
  }

  button.addEventListener("click", () => open(panel.hidden));
  search.addEventListener("input", draw);
  panel.addEventListener("keydown", press);
  document.addEventListener("click", (event) => element.contains(event.target) || panel.hidden || open(false));

  return {
    element,

    /** Show the runs and the current one; `missing` is the name of a run that does not exist. */
    show(listed, run, missing) {
      runs = listed;
      current = run?.name ?? null;
      const name = run ? titleOf(run) : missing ? `${missing} (not here)` : "no run";
      fill(button, name);
      button.value = run?.name ?? missing ?? "";
      if (!panel.hidden && !panel.contains(document.activeElement)) draw();
    },
  };
}

function text(run) {
  return [titleOf(run), run.name, KINDS[run.kind], date(run.updated_s), run.verdict].join("\n");
}

// The runs of a study come right below it, in the order of the list.
function nested(runs) {
  const studies = new Set(runs.filter((run) => run.kind === "study").map((run) => run.name));
  const inside = (run) => run.study && studies.has(run.study) && run.name !== run.study;
  return runs
    .filter((run) => !inside(run))
    .flatMap((run) => [
      { run, depth: 0 },
      ...runs.filter((item) => inside(item) && item.study === run.name).map((item) => ({ run: item, depth: 1 })),
    ]);
}

function date(seconds) {
  if (!seconds) return null;
  const time = new Date(seconds * 1000);
  const two = (number) => String(number).padStart(2, "0");
  return `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())} ${two(time.getHours())}:${two(time.getMinutes())}`;
}
