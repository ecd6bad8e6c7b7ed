// Controls of tables and trees: the search field, and headings that sort.

import { h } from "../core/dom.js";
import { hint } from "./definitions.js";

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
