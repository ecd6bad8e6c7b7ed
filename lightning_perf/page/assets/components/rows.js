// The source of a table's rows: all of them from the document, or page by page from the server.

import * as format from "../text/format.js";

const PAGE_OF_ALL = 1000;

/** Rows that are in the page. */
export function localRows(columns, rows) {
  const texts = columns.filter((column) => column.kind === "text");
  return {
    async page({ offset, limit, sort, descending, filter }) {
      const found = order(select(rows, texts, filter), columns, sort, descending);
      return { rows: found.slice(offset, offset + limit), total: found.length };
    },
    async all({ sort, descending, filter }) {
      return order(select(rows, texts, filter), columns, sort, descending);
    },
  };
}

/** Rows that the server sends page by page, sorted by members named like columns: `query` is {run, rank, table}. */
export function serverRows(source, query) {
  const page = async ({ offset, limit, sort, descending, filter }) =>
    source.table({ ...query, offset, limit, sort, descending: descending ? 1 : 0, filter });
  return {
    page,
    async all(order) {
      const rows = [];
      for (;;) {
        const answer = await page({ ...order, offset: rows.length, limit: PAGE_OF_ALL });
        for (const row of answer.rows) rows.push(row);
        if (answer.rows.length === 0 || rows.length >= answer.total) return rows;
      }
    },
  };
}

/**
 * The rows of a long table: from the report or, if the server shortened it, page by page from the server.
 *
 * `name`: "operators" or "kernels".
 */
export function pagedRows({ report, rank, run, source }, name, rows) {
  const total = report.truncated?.[name];
  if (!source.live || !total || total <= rows.length) return rows;
  return serverRows(source, { run: run.name, rank: report.ranks.indexOf(rank), table: name });
}

/** A remark if a page file has only the first rows of a table, with the command that prints all of them; else empty. */
export function cutNote({ report, source }, name, rows) {
  const total = report.truncated?.[name];
  if (source.live || !total || total <= rows.length) return "";
  return `The first ${format.count(rows.length)} of ${format.countOf(total, "row")}. lightning-perf analyze PATH --json prints all.`;
}

// Every word must occur in one of the row's texts, in upper or lower case.
function select(rows, columns, filter) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return rows;
  return rows.filter((row) => {
    const text = columns
      .map((column) => column.value(row) ?? "")
      .join("\n")
      .toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

// Rows without a value come last in either order. Equal rows keep their order.
function order(rows, columns, sort, descending) {
  const column = columns.find((item) => item.key === sort);
  if (!column) return rows;
  const sign = descending ? -1 : 1;
  const missing = (value) => value === null || value === undefined;
  return rows.toSorted((a, b) => {
    const [first, second] = [column.value(a), column.value(b)];
    if (missing(first) || missing(second)) return Number(missing(first)) - Number(missing(second));
    return sign * (typeof first === "number" ? first - second : String(first).localeCompare(String(second)));
  });
}
