// Links between the timeline and the tables.

import { link } from "./state.js";

/** The address of the table row of a kernel, operator or module. */
export function tableLink(view, name) {
  return link({ view, [`${view}.search`]: name });
}

/** The address of the timeline with every bin of a name marked. */
export function markAddress(lane, name, rank = {}) {
  return link({ ...rank, view: "timeline", "time.find": `${lane}:${name}` });
}
