// The view "Changes": two memory snapshots side by side.

import { part } from "../components/blocks.js";
import { missing } from "../components/parts.js";

export const snapshotChanges = { id: "changes", title: "Changes", kinds: ["snapshot-diff"], render };

function render({ report }) {
  return part(report, "changes") ?? missing("The snapshots have no device in common.");
}
