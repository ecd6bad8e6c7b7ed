// Links between the timeline and the tables.

import { link } from "../core/state.js";

/** The address of the table row of a kernel, operator or module. */
export function tableLink(view, name) {
  return link({ view, [`${view}.search`]: name });
}

/** The address of the timeline with every bin of a name marked. */
export function markAddress(lane, name, rank = {}) {
  return link({ ...rank, view: "timeline", "time.find": `${lane}:${name}` });
}

/** A function that returns the address of a row's name on the timeline; null for a name that no bin can list. */
export function markLinks(rank, lane) {
  const names = new Set(rank.timeline?.[lane]?.names);
  return (row) => (names.has(row.name) ? markAddress(lane, row.name) : null);
}
