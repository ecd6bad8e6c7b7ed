// The frame of the page: title, choice of run, rank and theme, menu of views, and the area for the current view.

import { drawAll } from "../components/chart.js";
import { notes as remarks } from "../components/parts.js";
import { fill, h } from "../core/dom.js";
import { link, read, write } from "../core/state.js";
import { applyTheme, theme } from "../core/theme.js";
import * as format from "../text/format.js";
import { runPicker } from "./run_picker.js";

/** Build the frame. `live`: whether a server provides the page. */
export function buildShell({ live }) {
  const runs = runPicker((name) => leaveTables({ run: name, rank: null }));
  const rankSelect = h("select", { id: "rank", on: { change: chooseRank } });
  const runField = field("Run", runs.element, "run");
  const rankField = field("Rank", rankSelect, "rank");
  const notes = h("div", { class: "listing-notes" });
  const status = h("p", { class: "status", role: "status", "aria-live": "polite" });
  const menu = h("ul", {});
  const main = h("main", { id: "main", tabindex: "-1" });
  const own = h("a", { class: "button", target: "_blank", rel: "noopener" }, "Open in a tab");
  const header = h(
    "header",
    { class: "top" },
    h("a", { class: "skip", href: "#main", on: { click: skip } }, "Skip to the figures"),
    h("p", { class: "brand" }, h("span", { class: "mark", "aria-hidden": "true" }), "lightning_perf"),
    runField,
    rankField,
    h(
      "div",
      { class: "tools" },
      live && window.top !== window ? own : null,
      h("button", { type: "button", on: { click: toggleTheme }, "aria-label": "Light or dark theme" }, "◐"),
      h("button", { type: "button", on: { click: print } }, "Print"),
    ),
  );
  const element = h("div", { class: "shell" }, header, h("nav", { "aria-label": "Views" }, menu), notes, main, status);

  // On paper, every finding is open.
  let folded = [];
  window.addEventListener("beforeprint", () => {
    folded = [...main.querySelectorAll("details.finding:not([open])")];
    for (const item of folded) item.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const item of folded) item.open = false;
  });

  function skip(event) {
    event.preventDefault(); // the address after "#" holds the state
    main.focus();
  }

  let emptyOpen = false; // whether the reader has opened the group of empty views
  const keepOpen = (event) => {
    emptyOpen = event.currentTarget.open;
  };

  let current = null;
  return {
    element,

    /** Show the list of runs. */
    runs(listing, run, state) {
      runs.show(listing.runs, run, run ? null : state.run);
      runField.hidden = !live && listing.runs.length < 2;
      own.href = location.href;
      fill(notes, remarks(listing.notes));
    },

    /** Show the ranks of the run. */
    ranks(ranks, rank, lead) {
      rankField.hidden = ranks.length < 2;
      fill(
        rankSelect,
        ranks.map((item, i) => h("option", { value: i }, rankName(item, i, i === lead))),
      );
      rankSelect.value = String(ranks.indexOf(rank));
    },

    /** Show the menu. */
    views(views, view, empty) {
      const reasons = new Map(empty.map((item) => [item.view, item.reason]));
      const entry = (item) =>
        h(
          "li",
          {},
          h(
            "a",
            {
              href: link({ view: item.id }),
              "aria-current": item === view ? "page" : null,
              class: reasons.has(item) ? "empty" : null,
              title: reasons.get(item)?.replaceAll("`", ""),
              on: { click: (event) => follow(event, item.id) },
            },
            item.title,
          ),
        );
      // With one view there is nothing to group, and that view shows the reason.
      const group = views.length > 1 ? views.filter((item) => reasons.has(item) && item.id !== "compare") : [];
      fill(
        menu,
        views.filter((item) => !group.includes(item)).map(entry),
        group.length
          ? h(
              "li",
              {},
              h(
                "details",
                { class: "empty-views", open: group.includes(view) || emptyOpen, on: { toggle: keepOpen } },
                h("summary", {}, `Not recorded (${group.length})`),
                h("ul", {}, group.map(entry)),
              ),
            )
          : null,
      );
      menu.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
    },

    /** Show a view. */
    show(view, render) {
      document.title = `${view.title} – lightning_perf`;
      const moved = current !== null && current !== view.id;
      current = view.id;
      fill(main, h("h1", { tabindex: "-1" }, view.title), render());
      if (moved) {
        window.scrollTo(0, 0);
        main.querySelector("h1").focus({ preventScroll: true });
      }
    },

    /** Show the progress of the server. */
    progress(name, { done, message }) {
      current = null;
      const bar = h("progress", { max: 1, value: done ?? null, "aria-label": `Analyzing ${name}` });
      fill(menu);
      fill(main, h("div", { class: "waiting" }, h("h1", {}, name), bar, h("p", { role: "status" }, message ?? "")));
    },

    /** Show a message instead of a view. */
    message(title, text) {
      current = null;
      rankField.hidden = true;
      fill(menu);
      fill(main, h("div", { class: "waiting" }, h("h1", {}, title), h("p", {}, text)));
    },

    /** Show a message for a few seconds. */
    status(text) {
      fill(status, text);
      setTimeout(() => status.textContent === text && fill(status), 8000);
    },
  };
}

function field(title, control, id) {
  return h("div", { class: "field", hidden: true }, h("label", { for: id }, title), control);
}

function rankName(analysis, row, lead) {
  const name =
    analysis.rank === null ? (analysis.sources[0]?.split("/").pop() ?? `recording ${row + 1}`) : String(analysis.rank);
  return `${name} · ${format.duration(analysis.breakdown.wall.mean_ns)}${lead ? " · in the verdict" : ""}`;
}

function chooseRank(event) {
  leaveTables({ rank: event.target.value });
}

function follow(event, view) {
  if (event.metaKey || event.ctrlKey || event.shiftKey || event.button) return; // a new tab or window
  event.preventDefault();
  leaveTables({ view });
}

// The settings of tables belong to the previous view, run and rank.
function leaveTables(changes) {
  const tables = Object.keys(read()).filter((key) => key.includes("."));
  write({ ...Object.fromEntries(tables.map((key) => [key, null])), ...changes }, { push: true });
}

// Print in light colors, and include the charts that were not yet in sight.
async function print() {
  const shown = theme();
  applyTheme("light");
  await drawAll();
  window.print();
  applyTheme(shown);
  if (shown !== "light") await drawAll();
}

function toggleTheme() {
  write({ theme: theme() === "dark" ? "light" : "dark" });
}
