// A tree with figures. It opens, closes, sorts siblings and searches, with the keys of a treegrid.

import { download, toCsv } from "../core/csv.js";
import { fill, h } from "../core/dom.js";
import { read, write } from "../core/state.js";
import * as format from "../text/format.js";
import { columnChoice, heading, markSorted, scrollFrame, searchField, timelineLink } from "./table_controls.js";

const OPEN_ROWS = 40; // outer levels start open as long as at most this number of rows is visible

/**
 * Create a tree.
 *
 * `rows`: {depth, parent}, each before its children. `parent` is an index of `rows` or null.
 * `columns`: as for `table`. The first one has the names. With `closed` only the outermost rows are shown at first.
 */
export function tree({ id, caption, columns, rows, sort, noun, closed = false }) {
  const children = rows.map(() => []);
  const roots = [];
  rows.forEach((row, i) => (row.parent === null ? roots : children[row.parent]).push(i));
  const open = new Set(closed ? [] : opened(rows, children));
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
    return { by: state[key("sort")] ?? sort, down: state[key("order")] !== "up" };
  }

  function refresh(focus = null) {
    const { by, down } = order();
    markSorted(heads, by, down);
    const wanted = matches(rows, columns[0], search.value);
    const shown = [];
    walk(roots, (i) => {
      if (wanted && !wanted.has(i)) return false;
      shown.push(i);
      return wanted ? true : open.has(i);
    });
    const visible = choice.shown();
    fill(titles, visible.map((column) => heads.get(column.key)));
    fill(
      body,
      shown.length
        ? shown.map((i) => line(i, wanted, visible))
        : h("tr", {}, h("td", { colspan: visible.length, class: "nothing" }, "No row matches your search.")),
    );
    const target = body.querySelector(`[data-row="${focus}"]`) ?? body.querySelector("[data-row]");
    target?.setAttribute("tabindex", "0");
    if (focus !== null) target?.focus();
  }

  function walk(list, visit) {
    const { by, down } = order();
    const column = columns.find((item) => item.key === by);
    const value = (i) => column.value(rows[i]) ?? -Infinity;
    const compare = (a, b) =>
      column.kind === "number" ? value(a) - value(b) : String(value(a)).localeCompare(String(value(b)));
    for (const i of column ? list.toSorted((a, b) => (down ? -1 : 1) * compare(a, b)) : list) {
      if (visit(i)) walk(children[i], visit);
    }
  }

  function line(i, wanted, visible) {
    const row = rows[i];
    const parent = children[i].length > 0;
    const isOpen = wanted ? true : open.has(i);
    const cells = visible.map((column, c) => {
      const value = column.value(row);
      const text = column.show ? column.show(value, row) : (value ?? format.NOT_AVAILABLE);
      const share = column.bar?.(row);
      if (c > 0) {
        const bar = Number.isFinite(share)
          ? h("span", { class: "bar", style: { "--share": Math.min(1, share) } })
          : null;
        return h(
          "td",
          { role: "gridcell", class: column.bar ? "number barred" : "number" },
          bar,
          h("span", { class: "figure" }, text),
        );
      }
      const mark = h(
        "span",
        { class: parent ? "twist" : "twist leaf", "aria-hidden": "true", on: { click: () => toggle(i) } },
        parent ? (isOpen ? "▾" : "▸") : "",
      );
      return h(
        "th",
        { scope: "row", role: "rowheader", class: "words" },
        h("span", { class: "branch", style: { "--depth": row.depth } }, mark, h("span", { class: "name code" }, text), timelineLink(columns[0], row)),
      );
    });
    const properties = {
      role: "row",
      "data-row": i,
      "aria-level": row.depth + 1,
      "aria-expanded": parent ? String(isOpen) : null,
      tabindex: "-1",
    };
    return h("tr", { ...properties, on: { keydown: (event) => press(event, i) } }, cells);
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
          : rows[i].parent !== null && go(shown.findIndex((item) => Number(item.dataset.row) === rows[i].parent)),
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
      h("span", {}, format.countOf(rows.length, noun)),
      h(
        "button",
        { type: "button", class: "export", on: { click: () => download(`${id}.csv`, toCsv(columns, rows)) } },
        "CSV",
      ),
    ),
  );
}

function opened(rows, children) {
  const open = [];
  let shown = children.length - rows.filter((row) => row.parent !== null).length;
  for (let depth = 0; ; depth += 1) {
    const level = rows.map((row, i) => i).filter((i) => rows[i].depth === depth && children[i].length);
    const more = level.reduce((sum, i) => sum + children[i].length, 0);
    if (level.length === 0 || (depth > 0 && shown + more > OPEN_ROWS)) return open;
    for (const i of level) open.push(i);
    shown += more;
  }
}

// The rows with the text in their names, and all rows above them; null without a text.
function matches(rows, column, text) {
  const needle = text.trim().toLowerCase();
  if (!needle) return null;
  const found = new Set();
  rows.forEach((row, i) => {
    if (!String(column.value(row)).toLowerCase().includes(needle)) return;
    for (let at = i; at !== null; at = rows[at].parent) found.add(at);
  });
  return found;
}
