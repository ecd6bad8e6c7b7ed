// Selects and sorts the rows of a table.

/** The rows in which every word of the filter occurs in one of their texts, in upper or lower case. */
export function select(rows, columns, filter) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = columns.filter((column) => column.kind === "text");
  if (words.length === 0) return rows;
  return rows.filter((row) => {
    const text = texts
      .map((column) => column.value(row) ?? "")
      .join("\n")
      .toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

/** The rows sorted by a column. Rows without a value come last in either order. Equal rows keep their order. */
export function order(rows, column, descending) {
  if (!column) return rows;
  const sign = descending ? -1 : 1;
  const missing = (value) => value === null || value === undefined;
  return rows.toSorted((a, b) => {
    const [first, second] = [column.value(a), column.value(b)];
    if (missing(first) || missing(second)) return Number(missing(first)) - Number(missing(second));
    return sign * (typeof first === "number" ? first - second : String(first).localeCompare(String(second)));
  });
}
