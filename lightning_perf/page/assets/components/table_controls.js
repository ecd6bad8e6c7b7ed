// Controls of tables and trees: the search field, headings that sort, the choice of columns, and the scrolling frame.

import { fill, h } from "../core/dom.js";
import { read, write } from "../core/state.js";
import { hint } from "./definitions.js";
import { swatch } from "./parts.js";

const CHOICE_FROM = 6; // from this number of columns on, the reader can choose among them

/** The search field. `text` is its initial content, and `changed(text)` is called for every change. */
export function searchField(caption, text, changed) {
  const field = h("input", {
    type: "search",
    placeholder: "Search",
    "aria-label": `Search: ${caption}`,
    spellcheck: "false",
    on: { input: () => changed(field.value) },
  });
  field.value = text;
  return field;
}

/** The heading of a column. `sort()` is called when the reader presses it. */
export function heading(column, sort) {
  return h(
    "th",
    { scope: "col", role: "columnheader", class: column.kind === "number" ? "number" : null, "aria-sort": "none" },
    h(
      "span",
      { class: "head" },
      h("button", { type: "button", on: { click: sort } }, column.title),
      hint(column.title, column.definition),
    ),
  );
}

/** Mark the heading by which rows are sorted. `headings` maps the keys of columns to headings. */
export function markSorted(headings, by, descending) {
  for (const [key, cell] of headings) {
    cell.setAttribute("aria-sort", key !== by ? "none" : descending ? "descending" : "ascending");
  }
}

/**
 * The columns that the reader has chosen, kept in the address under `key`. A column is shown by default if the page has at
 * least `optional` pixels of width.
 *
 * `changed()` is called for every change. Returns {shown(), control}; `control` is null if there is nothing to choose.
 */
export function columnChoice(columns, key, changed) {
  const [first, ...others] = columns;
  const usual = others.filter(({ optional }) => !optional || innerWidth >= optional);
  const shown = () => {
    const chosen = read()[key]?.split(",");
    return [first, ...(chosen ? others.filter((column) => chosen.includes(column.key)) : usual)];
  };
  if (columns.length < CHOICE_FROM && usual.length === others.length) return { shown, control: null };

  const store = (chosen) => {
    const same = chosen.length === usual.length && chosen.every((column) => usual.includes(column));
    write({ [key]: same ? null : chosen.map((column) => column.key).join(",") || "-" }, { quiet: true });
    label();
    changed();
  };
  const toggle = (column) => {
    const now = shown();
    store(others.filter((item) => now.includes(item) !== (item === column)));
  };
  const summary = h("summary", {});
  const boxes = others.map((column) => {
    const box = h("input", { type: "checkbox", on: { change: () => toggle(column) } });
    return { column, box, line: h("label", {}, box, column.title) };
  });
  const label = () => {
    const now = shown();
    for (const { column, box } of boxes) box.checked = now.includes(column);
    fill(summary, now.length === columns.length ? "Columns" : `Columns (${now.length} of ${columns.length})`);
  };
  label();
  const all = (wanted) => h("button", { type: "button", on: { click: () => store(wanted) } }, wanted === others ? "All" : "Usual");
  const control = h(
    "details",
    { class: "columns-choice" },
    summary,
    h("div", { class: "columns-list" }, h("div", { class: "row" }, all(others), all(usual)), boxes.map(({ line }) => line)),
  );
  const close = (event) => {
    if (event.type === "keydown" ? event.key === "Escape" : !control.contains(event.target)) {
      if (control.contains(document.activeElement)) summary.focus();
      control.open = false;
    }
  };
  control.addEventListener("toggle", () => {
    const method = control.open ? "addEventListener" : "removeEventListener";
    document[method]("click", close);
    document[method]("keydown", close);
  });
  return { shown, control };
}

/** A frame that scrolls a wide table sideways. A shadow marks each edge behind which there are more columns. */
export function scrollFrame(caption, content) {
  const scroll = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, content);
  const frame = h("div", { class: "scroll-frame" }, scroll);
  const mark = () => {
    frame.classList.toggle("more-left", scroll.scrollLeft > 1);
    frame.classList.toggle("more-right", scroll.scrollLeft + scroll.clientWidth < scroll.scrollWidth - 1);
    const pinned = content.querySelector("thead th");
    if (pinned) frame.style.setProperty("--pinned", `${pinned.offsetWidth}px`);
  };
  scroll.addEventListener("scroll", mark, { passive: true });
  const observer = new ResizeObserver(mark);
  observer.observe(scroll);
  observer.observe(content);
  return { frame, scroll };
}

/** The cell of a row. `open` is called when the reader presses its name. */
export function cell(column, row, first, open = null) {
  const shown = column.show(row);
  const share = column.bar?.(row);
  const kind = column.kind === "number" ? "number" : "words";
  return h(
    first ? "th" : "td",
    { scope: first ? "row" : null, class: column.bar ? `${kind} barred` : kind },
    Number.isFinite(share) ? h("span", { class: "bar", style: { "--share": Math.max(0, Math.min(1, share)) } }) : null,
    column.kind === "text" && typeof shown === "string"
      ? named(column.swatch(row), name(shown, column.code, open, column.short?.(row)), timelineLink(column, row))
      : h("span", { class: "figure" }, typeof shown === "string" ? ends(shown) : shown),
  );
}

// A name with its color and its link, side by side.
function named(color, content, link) {
  return color || link ? h("span", { class: "named" }, color ? swatch(color) : null, content, link) : content;
}

// A figure with its interval. A line may break before the bracket of the interval, or else before its second end.
function ends(figure) {
  const parts = figure.split(figure.includes(" (") ? / (?=\()/ : / (?=to |– )/);
  return parts.map((part, i) => [i ? " " : null, h("span", { class: "end" }, part)]);
}

const LONG = 64;
const SHORT = 24; // stays on one line

/** A name. A long one is cut to one line, or shows its short form, and opens when the reader presses it. */
export function name(text, code = false, open = null, short = "") {
  const kind = code ? "name code" : "name";
  if (!open && !short && text.length <= LONG) return h("span", { class: text.length <= SHORT ? `${kind} short` : kind }, text);
  const unfold = (event) => {
    const button = event.currentTarget;
    const opened = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!opened));
    if (short) button.textContent = opened ? short : text;
  };
  const properties = { class: `${kind} long${open ? " more" : ""}`, title: text, on: { click: open ?? unfold } };
  return h("button", { type: "button", "aria-expanded": "false", ...properties }, short || text);
}

/** The link from a row to the timeline, for a column with `go(row)`, which returns its address or null. */
export function timelineLink(column, row) {
  const address = column.go?.(row);
  const title = `Show ${column.value(row)} on the timeline`;
  return address ? h("a", { class: "go", href: address, title, "aria-label": title }) : null;
}
