// Columns of tables, by the kind of their values. A column shows the member of a row with the same name as its key, and
// has that name in the exported file. `more` overrides this: {value, show, csv, definition, code, bar}.

import { h } from "../core/dom.js";
import * as format from "../text/format.js";
import { swatch } from "./parts.js";

/** A column of text. */
export function text(key, title, more = {}) {
  return { key, title, kind: "text", csv: key, value: (row) => row[key], ...more };
}

/** A column of figures. */
export function number(key, title, more = {}) {
  return { key, title, kind: "number", csv: key, value: (row) => row[key], ...more };
}

/** A column of durations, in nanoseconds. */
export function time(key, title, more = {}) {
  return number(key, title, { show: format.duration, ...more });
}

/** A column of durations, in milliseconds. */
export function timeMs(key, title, more = {}) {
  return number(key, title, { show: (value) => format.duration(value === null ? null : value * 1e6), ...more });
}

/** A column of counts. */
export function count(key, title, more = {}) {
  return number(key, title, { show: format.count, ...more });
}

/** A column of shares, 0 to 1. */
export function share(key, title, more = {}) {
  return number(key, title, { show: format.share, ...more });
}

/** A column of memory sizes, in bytes. */
export function bytes(key, title, more = {}) {
  return number(key, title, { show: format.bytes, ...more });
}

/** Turn a column of sums over some steps into one of means per step. */
export function perStep(steps, column) {
  const value = (row) => {
    const sum = column.value(row);
    return sum === null ? null : sum / steps;
  };
  return { ...column, csv: `${column.csv}_per_step`, value };
}

/** Remove columns that are empty in every row. The first column names the rows. */
export function filled(rows, columns) {
  const empty = (value) => value === null || value === undefined || value === "";
  return columns.filter((column, i) => i === 0 || rows.some((row) => !empty(column.value(row))));
}
