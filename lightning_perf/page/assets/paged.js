// The rows of a long table: those of the report or, where a server shortened it, page by page from there.

import { serverRows } from "./rows.js";

/** What `table` takes as rows. `name`: "operators" or "kernels". */
export function pagedRows({ report, rank, run, source }, name, rows) {
  const total = report.truncated?.[name];
  if (!source.live || !total || total <= rows.length) return rows;
  return serverRows(source, { run: run.name, rank: report.ranks.indexOf(rank), table: name });
}
