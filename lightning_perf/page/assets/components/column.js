// Columns of tables, by what stands in them. A column takes the member of a row that its key names, and is called so in
// the exported file; `more` says otherwise, or more: {value, show, csv, definition, code, bar}.

import { h } from "../core/dom.js";
import * as format from "../text/format.js";
import { swatch } from "./parts.js";

/** Words. */
export function text(key, title, more = {}) {
  return { key, title, kind: "text", csv: key, value: (row) => row[key], ...more };
}

/** Words with a colour before them, of which `color(row)` tells the name. */
export function colored(key, title, color, more = {}) {
  const show = (words, row) => h("span", { class: "with-swatch" }, swatch(color(row)), words);
  return text(key, title, { show, ...more });
}

/** A figure. */
export function number(key, title, more = {}) {
  return { key, title, kind: "number", csv: key, value: (row) => row[key], ...more };
}

/** A length of time, in nanoseconds. */
export function time(key, title, more = {}) {
  return number(key, title, { show: format.duration, ...more });
}

/** A length of time, in milliseconds. */
export function timeMs(key, title, more = {}) {
  return number(key, title, { show: (value) => format.duration(value === null ? null : value * 1e6), ...more });
}

/** A number of things. */
export function count(key, title, more = {}) {
  return number(key, title, { show: format.count, ...more });
}

/** A part of a whole, 0 to 1. */
export function share(key, title, more = {}) {
  return number(key, title, { show: format.share, ...more });
}

/** An amount of memory, in bytes. */
export function bytes(key, title, more = {}) {
  return number(key, title, { show: format.bytes, ...more });
}

/** A column of sums over some steps as one of means a step. */
export function perStep(steps, column) {
  const value = (row) => {
    const sum = column.value(row);
    return sum === null ? null : sum / steps;
  };
  return { ...column, csv: `${column.csv}_per_step`, value };
}

/** The columns, of which the first one names the rows, without those that are empty in every row. */
export function filled(rows, columns) {
  const empty = (value) => value === null || value === undefined || value === "";
  return columns.filter((column, i) => i === 0 || rows.some((row) => !empty(column.value(row))));
}
