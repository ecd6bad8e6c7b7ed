// What tables and trees have in common: the field to search in, and headings that sort.

import { h } from "../core/dom.js";
import { hint } from "./definitions.js";

/** The field to search in: `text` stands in it at first, `changed(text)` is called with every other one. */
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

/** The heading of a column; `sort()` is called when it is pressed. */
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

/** Mark the heading by which rows are sorted. `headings` are by the keys of their columns. */
export function markSorted(headings, by, descending) {
  for (const [key, cell] of headings) {
    cell.setAttribute("aria-sort", key !== by ? "none" : descending ? "descending" : "ascending");
  }
}
