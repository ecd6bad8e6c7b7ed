// A table that sorts, searches, pages and exports, also by keyboard. The address holds the reader's choices.

import { download, toCsv } from "../core/csv.js";
import { fill, h } from "../core/dom.js";
import { read, write } from "../core/state.js";
import * as format from "../text/format.js";
import { order, select } from "./rows.js";
import { cell, columnChoice, heading, markSorted, scrollFrame, searchField } from "./table_controls.js";

const SIZES = [25, 100, 500];
const SEARCH_FROM = 8; // from this number of rows on, there are controls to search and export

/**
 * Create a table.
 *
 * @param id Its name in the address and in the exported file.
 * @param caption Its description.
 * @param columns {key, title, kind: "text" or "number", value(row), show(row), csv, definition, code, swatch(row), bar(row),
 *   go(row), optional}. The column sorts, searches and exports by `value`, and shows the text or node that `show` returns.
 *   The name in the exported file is `csv`, with its unit. `swatch` names the color of a square before the text. With
 *   `code` the text is set as code. `bar` is a share, 0 to 1, behind the figure. `go` returns the address of the row on the
 *   timeline. A column with the number `optional` is hidden on narrower pages until the reader chooses it. The exported
 *   file has all columns.
 * @param details Returns a function that builds the content below a row when the reader opens it, or null for a row
 *   without more to show.
 */
export function table({ id, caption, columns, rows, details = () => null }) {
  const small = rows.length < SEARCH_FROM;
  const key = (name) => `${id}.${name}`;
  const body = h("tbody");
  const heads = new Map(columns.map((column) => [column.key, head(column)]));
  const titles = h("tr");
  const choice = columnChoice(columns, key("columns"), () => refresh());
  const foot = h("div", { class: "table-foot" });

  function options() {
    const state = read();
    const size = Number(state[key("size")]);
    return {
      sort: state[key("sort")] ?? null,
      descending: state[key("order")] !== "up",
      filter: state[key("search")] ?? "",
      page: Math.max(0, (Number(state[key("page")]) || 1) - 1),
      size: SIZES.includes(size) ? size : SIZES[0],
    };
  }

  function found({ sort, descending, filter }) {
    return order(select(rows, columns, filter), columns.find((column) => column.key === sort), descending);
  }

  function refresh() {
    const now = options();
    const all = found(now);
    const pages = Math.max(1, Math.ceil(all.length / now.size));
    if (now.page >= pages) return change({ page: pages });
    const part = all.slice(now.page * now.size, (now.page + 1) * now.size);
    const shown = choice.shown();
    markSorted(heads, now.sort, now.descending);
    scroll.classList.toggle("tall", part.length > SIZES[0]);
    fill(titles, shown.map((column) => heads.get(column.key)));
    fill(body, part.length ? part.map((row) => lines(row, shown)) : nothing(shown.length));
    fill(foot, paging(now, all.length, pages));
  }

  function change(changes) {
    const named = Object.entries({ page: null, ...changes }).map(([name, value]) => [
      key(name),
      value === 1 && name === "page" ? null : value,
    ]);
    write(Object.fromEntries(named), { quiet: true });
    refresh();
  }

  function lines(row, shown) {
    const more = details(row);
    if (more === null) return h("tr", {}, shown.map((column, i) => cell(column, row, i === 0)));
    const below = h(
      "tr",
      { class: "details", hidden: true },
      h("td", { colspan: shown.length }, h("div", { class: "details-box" })),
    );
    const open = (event) => {
      below.hidden = !below.hidden;
      event.currentTarget.setAttribute("aria-expanded", String(!below.hidden));
      const box = below.querySelector(".details-box");
      if (!below.hidden && !box.childElementCount) box.append(...[more()].flat(Infinity).filter(Boolean));
    };
    return [h("tr", {}, shown.map((column, i) => cell(column, row, i === 0, i === 0 ? open : null))), below];
  }

  function head(column) {
    return heading(column, () => {
      const now = options();
      const down = now.sort === column.key ? !now.descending : column.kind === "number";
      change({ sort: column.key, order: down ? "down" : "up" });
    });
  }

  function paging(now, total, pages) {
    const first = now.page * now.size;
    const text =
      total > now.size
        ? `${format.count(first + 1)}–${format.count(Math.min(total, first + now.size))} of ${format.count(total)}`
        : format.countOf(total, "row");
    const turn = (to, title, sign) =>
      h(
        "button",
        { type: "button", "aria-label": title, disabled: to < 0 || to >= pages, on: { click: () => change({ page: to + 1 }) } },
        sign,
      );
    const sizes = h(
      "select",
      { "aria-label": "Rows per page", on: { change: (event) => change({ size: event.target.value }) } },
      SIZES.map((size) => h("option", { value: size, selected: size === now.size }, `${size} per page`)),
    );
    return [
      h("span", { role: "status" }, small ? "" : text),
      pages > 1 ? [turn(now.page - 1, "Previous page", "‹"), turn(now.page + 1, "Next page", "›")] : null,
      total > SIZES[0] ? sizes : null,
      total > 1 ? h("button", { type: "button", class: "export", on: { click: exportAll } }, "CSV") : null,
    ];
  }

  function exportAll() {
    download(`${id}.csv`, toCsv(columns, found(options())));
  }

  const search = small && !options().filter ? null : searchField(caption, options().filter, (text) => change({ search: text }));
  const grid = h("table", {}, h("caption", { class: "unseen" }, caption), h("thead", {}, titles), body);
  const { frame, scroll } = scrollFrame(caption, grid);
  refresh();
  const tools = search || choice.control ? h("div", { class: "table-tools row" }, search, choice.control) : null;
  return h("div", { class: "table", id: `table-${id}` }, tools, frame, foot);
}

/** The row of a table without rows. */
export function nothing(width) {
  return h("tr", {}, h("td", { colspan: width, class: "nothing" }, "No row matches."));
}
