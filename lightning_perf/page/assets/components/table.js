// A table that sorts, searches, pages and exports, also by keyboard. The address holds the reader's choices.

import { download, toCsv } from "../core/csv.js";
import { fill, h } from "../core/dom.js";
import { SourceError } from "../core/source.js";
import { read, write } from "../core/state.js";
import * as format from "../text/format.js";
import { section, swatch } from "./parts.js";
import { localRows } from "./rows.js";
import { columnChoice, heading, markSorted, scrollFrame, searchField, timelineLink } from "./table_controls.js";

const SIZES = [25, 100, 500];
const SEARCH_FROM = 8; // from this number of rows on, there are controls to search and export

/**
 * A section with one table and nothing else.
 *
 * `definition`, `aside` and `before` (the content above the table) belong to the section, and the others to the table.
 * By default its caption is the title.
 */
export function tableSection(title, { definition = null, aside = null, caption = title, before = null, ...more }) {
  return section(title, { definition, aside }, before, table({ caption, ...more }));
}

/**
 * Create a table.
 *
 * @param id Its name in the address and in the exported file.
 * @param caption Its description.
 * @param columns {key, title, kind: "text" or "number", value(row), show(value, row), csv, definition, code, bar(row),
 *   optional}. The column sorts, searches and exports by `value`, and shows the text or node that `show` returns.
 *   The name in the exported file is `csv`, with its unit.
 *   `swatch(row)` names the color of a square before the text. With `code` the text is set as code, and `bar` is a share, 0 to 1, behind the figure.
 *   `go(row)` returns the address of the row on the timeline. A column with the number
 *   `optional` is hidden on narrower pages until the reader chooses it. The exported file has all columns.
 * @param rows The rows, or a source from `rows.js`.
 * @param sort The initial order, by default that of the rows.
 * @param descending Whether it starts with the largest.
 * @param searchable Whether it can be searched.
 * @param details Returns a function that builds the content below a row when the reader opens it, or null for a row
 *   without more to show.
 */
export function table({ id, caption, columns, rows, sort = null, descending = true, searchable = true, details = null }) {
  const source = Array.isArray(rows) ? localRows(columns, rows) : rows;
  const small = Array.isArray(rows) && rows.length < SEARCH_FROM;
  const key = (name) => `${id}.${name}`;
  const body = h("tbody");
  const heads = new Map(columns.map((column) => [column.key, head(column)]));
  const titles = h("tr");
  const choice = columnChoice(columns, key("columns"), () => refresh());
  const foot = h("div", { class: "table-foot" });
  let asked = 0;

  function options() {
    const state = read();
    const size = Number(state[key("size")]);
    return {
      sort: state[key("sort")] ?? sort,
      descending: state[key("order")] ? state[key("order")] === "down" : descending,
      filter: state[key("search")] ?? "",
      page: Math.max(0, (Number(state[key("page")]) || 1) - 1),
      size: SIZES.includes(size) ? size : SIZES[0],
    };
  }

  async function refresh() {
    const mine = (asked += 1);
    const now = options();
    markSorted(heads, now.sort, now.descending);
    let answer;
    try {
      answer = await source.page({ ...now, offset: now.page * now.size, limit: now.size });
    } catch (error) {
      if (!(error instanceof SourceError)) throw error;
      if (mine === asked) fill(foot, h("p", { class: "notice", role: "alert" }, error.message));
      return;
    }
    if (mine !== asked) return;
    const pages = Math.max(1, Math.ceil(answer.total / now.size));
    if (now.page >= pages) return change({ page: pages });
    scroll.classList.toggle("tall", answer.rows.length > SIZES[0]);
    const shown = choice.shown();
    fill(titles, shown.map((column) => heads.get(column.key)));
    fill(body, answer.rows.length ? answer.rows.map((row) => lines(row, shown)) : nothing(now.filter, shown.length));
    fill(foot, paging(now, answer.total, pages));
  }

  function change(changes) {
    const named = Object.entries({ page: null, ...changes }).map(([name, value]) => [
      key(name),
      value === 1 && name === "page" ? null : value,
    ]);
    write(Object.fromEntries(named), { quiet: true });
    return refresh();
  }

  function lines(row, shown) {
    const more = details?.(row) ?? null;
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

  function cell(column, row, first, open = null) {
    const value = column.value(row);
    const shown = column.show ? column.show(value, row) : (value ?? format.NOT_AVAILABLE);
    const part = column.bar?.(row);
    return h(
      first ? "th" : "td",
      {
        scope: first ? "row" : null,
        class: [column.kind === "number" ? "number" : "words", column.bar ? "barred" : null].filter(Boolean).join(" "),
      },
      Number.isFinite(part) ? h("span", { class: "bar", style: { "--share": Math.max(0, Math.min(1, part)) } }) : null,
      column.kind === "text" && typeof shown === "string"
        ? named(column.swatch?.(row), name(shown, column.code, open), timelineLink(column, row))
        : h("span", { class: "figure" }, typeof shown === "string" ? ends(shown) : shown),
    );
  }

  function nothing(filter, width) {
    return h(
      "tr",
      {},
      h("td", { colspan: width, class: "nothing" }, filter ? "No row matches your search." : "No rows."),
    );
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
        {
          type: "button",
          "aria-label": title,
          disabled: to < 0 || to >= pages,
          on: { click: () => change({ page: to + 1 }) },
        },
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

  async function exportAll() {
    const now = options();
    try {
      download(`${id}.csv`, toCsv(columns, await source.all(now)));
    } catch (error) {
      if (!(error instanceof SourceError)) throw error;
      foot.append(h("p", { class: "notice", role: "alert" }, error.message));
    }
  }

  const search = searchField(caption, options().filter, (text) => change({ search: text }));
  const grid = h(
    "table",
    {},
    h("caption", { class: "unseen" }, caption),
    h("thead", {}, titles),
    body,
  );
  const { frame, scroll } = scrollFrame(caption, grid);
  fill(titles, choice.shown().map((column) => heads.get(column.key)));
  refresh();
  return h(
    "div",
    { class: "table", id: `table-${id}` },
    tools((small && !options().filter) || !searchable ? null : search, choice.control),
    frame,
    foot,
  );
}

// A name with its color and its link, side by side.
function named(color, content, link) {
  return color || link ? h("span", { class: "named" }, color ? swatch(color) : null, content, link) : content;
}

function tools(...controls) {
  return controls.some(Boolean) ? h("div", { class: "table-tools row" }, controls) : null;
}

/** A figure with its interval. A line may break before the bracket of the interval, or else before its second end. */
function ends(figure) {
  const parts = figure.split(figure.includes(" (") ? / (?=\()/ : / (?=to |– )/);
  return parts.map((part, i) => [i ? " " : null, h("span", { class: "end" }, part)]);
}

const LONG = 64;
const SHORT = 24; // stays on one line

/** A name. A long one is cut to one line and opens when the reader presses it. */
export function name(text, code = false, open = null) {
  const kind = code ? "name code" : "name";
  if (open) {
    return h(
      "button",
      { type: "button", class: `${kind} long more`, "aria-expanded": "false", title: text, on: { click: open } },
      text,
    );
  }
  if (text.length <= SHORT) return h("span", { class: `${kind} short` }, text);
  if (text.length <= LONG) return h("span", { class: kind }, text);
  const toggle = (event) => {
    const open = event.currentTarget.getAttribute("aria-expanded") === "true";
    event.currentTarget.setAttribute("aria-expanded", String(!open));
  };
  return h(
    "button",
    { type: "button", class: `${kind} long`, "aria-expanded": "false", title: text, on: { click: toggle } },
    text,
  );
}
