// A tree with figures. It opens, closes, sorts siblings and searches, with the keys of a treegrid.

import { download, toCsv } from "../core/csv.js";
import { fill, h } from "../core/dom.js";
import { read, write } from "../core/state.js";
import * as format from "../text/format.js";
import { order as sorted } from "./rows.js";
import { nothing } from "./table.js";
import { cell, columnChoice, heading, markSorted, scrollFrame, searchField, timelineLink } from "./table_controls.js";

const OPEN_ROWS = 40; // outer levels start open as long as at most this number of rows is visible

/**
 * Create a tree.
 *
 * `columns` and `rows` are as for `table`, and the first column has the names. `parents`: the index of the row above each
 * row, or null. Each row comes before its children.
 */
export function tree({ id, caption, columns, rows, parents }) {
  const children = rows.map(() => []);
  const depths = [];
  const roots = [];
  parents.forEach((parent, i) => {
    depths.push(parent === null ? 0 : depths[parent] + 1);
    (parent === null ? roots : children[parent]).push(i);
  });
  const open = new Set(opened(depths, children, roots.length));
  const body = h("tbody");
  const heads = new Map(columns.map((column) => [column.key, head(column)]));
  const titles = h("tr", { role: "row" });
  const key = (name) => `${id}.${name}`;
  const choice = columnChoice(columns, key("columns"), () => refresh());
  const search = searchField(caption, read()[key("search")] ?? "", (text) => {
    write({ [key("search")]: text }, { quiet: true });
    refresh();
  });

  function order() {
    const state = read();
    return { by: state[key("sort")], down: state[key("order")] !== "up" };
  }

  function refresh(focus = null) {
    const { by, down } = order();
    markSorted(heads, by, down);
    const wanted = matches(rows, parents, columns[0], search.value);
    const shown = [];
    walk(roots, (i) => {
      if (wanted && !wanted.has(i)) return false;
      shown.push(i);
      return wanted ? true : open.has(i);
    });
    const visible = choice.shown();
    fill(titles, visible.map((column) => heads.get(column.key)));
    fill(body, shown.length ? shown.map((i) => line(i, wanted, visible)) : nothing(visible.length));
    const target = body.querySelector(`[data-row="${focus}"]`) ?? body.querySelector("[data-row]");
    target?.setAttribute("tabindex", "0");
    if (focus !== null) target?.focus();
  }

  function walk(list, visit) {
    const { by, down } = order();
    const column = columns.find((item) => item.key === by);
    const ordered = sorted(list.map((i) => ({ i, row: rows[i] })), column && { value: ({ row }) => column.value(row) }, down);
    for (const { i } of ordered) if (visit(i)) walk(children[i], visit);
  }

  function line(i, wanted, visible) {
    const parent = children[i].length > 0;
    const isOpen = wanted ? true : open.has(i);
    const [first, ...others] = visible;
    const sign = parent ? (isOpen ? "▾" : "▸") : "";
    const mark = h("span", { class: parent ? "twist" : "twist leaf", "aria-hidden": "true", on: { click: () => toggle(i) } }, sign);
    const name = h("span", { class: first.code ? "name code" : "name" }, first.value(rows[i]).trimStart());
    const properties = {
      role: "row",
      "data-row": i,
      "aria-level": depths[i] + 1,
      "aria-expanded": parent ? String(isOpen) : null,
      tabindex: "-1",
    };
    const cells = others.map((column) => cell(column, rows[i], false));
    for (const each of cells) each.setAttribute("role", "gridcell");
    return h(
      "tr",
      { ...properties, on: { keydown: (event) => press(event, i) } },
      h(
        "th",
        { scope: "row", role: "rowheader", class: "words" },
        h("span", { class: "branch", style: { "--depth": depths[i] } }, mark, name, timelineLink(first, rows[i])),
      ),
      cells,
    );
  }

  function toggle(i) {
    if (open.has(i)) open.delete(i);
    else open.add(i);
    refresh(i);
  }

  function press(event, i) {
    const shown = [...body.querySelectorAll("[data-row]")];
    const at = shown.indexOf(event.currentTarget);
    const go = (to) => {
      if (!shown[to]) return;
      event.currentTarget.setAttribute("tabindex", "-1");
      shown[to].setAttribute("tabindex", "0");
      shown[to].focus();
    };
    const keys = {
      ArrowDown: () => go(at + 1),
      ArrowUp: () => go(at - 1),
      Home: () => go(0),
      End: () => go(shown.length - 1),
      ArrowRight: () => (children[i].length && !open.has(i) ? toggle(i) : go(at + 1)),
      ArrowLeft: () =>
        open.has(i)
          ? toggle(i)
          : parents[i] !== null && go(shown.findIndex((item) => Number(item.dataset.row) === parents[i])),
      Enter: () => children[i].length && toggle(i),
    };
    if (!(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  }

  function head(column) {
    return heading(column, () => {
      const { by, down } = order();
      write({ [key("sort")]: column.key, [key("order")]: by === column.key && down ? "up" : "down" }, { quiet: true });
      refresh();
    });
  }

  const all = (expand) => () => {
    open.clear();
    if (expand) rows.forEach((_, i) => open.add(i));
    refresh();
  };
  const grid = h(
    "table",
    { role: "treegrid", "aria-label": caption },
    h("thead", {}, titles),
    body,
  );
  refresh();
  return h(
    "div",
    { class: "table", id: `table-${id}` },
    h(
      "div",
      { class: "table-tools row" },
      search,
      h("button", { type: "button", on: { click: all(true) } }, "Open all"),
      h("button", { type: "button", on: { click: all(false) } }, "Close all"),
      choice.control,
    ),
    scrollFrame(caption, grid).frame,
    h(
      "div",
      { class: "table-foot" },
      h("span", {}, format.countOf(rows.length, "row")),
      h(
        "button",
        { type: "button", class: "export", on: { click: () => download(`${id}.csv`, toCsv(columns, rows)) } },
        "CSV",
      ),
    ),
  );
}

function opened(depths, children, roots) {
  const open = [];
  let shown = roots;
  for (let depth = 0; ; depth += 1) {
    const level = depths.map((_, i) => i).filter((i) => depths[i] === depth && children[i].length);
    shown += level.reduce((sum, i) => sum + children[i].length, 0);
    if (level.length === 0 || shown > OPEN_ROWS) return open;
    for (const i of level) open.push(i);
  }
}

// The rows with the text in their names, and all rows above them; null without a text.
function matches(rows, parents, column, text) {
  const needle = text.trim().toLowerCase();
  if (!needle) return null;
  const found = new Set();
  rows.forEach((row, i) => {
    if (!String(column.value(row)).toLowerCase().includes(needle)) return;
    for (let at = i; at !== null; at = parents[at]) found.add(at);
  });
  return found;
}
