// What the host does for a step beside the model.

import * as format from "../format.js";
import { facts, section } from "../parts.js";
import { per } from "../words.js";

/** How batches are fetched and moved; null where nothing tells. */
export function loading(rank) {
  const { loading: found } = rank;
  if (!found) return null;
  const steps = Math.max(found.steps, 1);
  const who = { in_process: "the training process itself (num_workers=0)", workers: "worker processes" }[found.loader];
  return section(
    "Batch loading",
    { definition: "batch-loading", aside: per(rank) },
    facts([
      ["Batches made by", who ?? "not told by the recording"],
      ["Fetches", format.count(found.fetches / steps)],
      ["Time in fetches", format.duration(found.fetch_ns / steps)],
      ["of it in operators", format.duration(found.operator_ns / steps)],
      found.pageable_copies > 0 && [
        "Copies from pageable memory",
        `${format.count(found.pageable_copies / steps)}, ${format.bytes(found.pageable_bytes / steps)} in ${format.duration(found.pageable_ns / steps)}`,
      ],
    ]),
  );
}

/** What the optimizer costs; null where there is none. */
export function optimizer(rank) {
  const { optimizer: found } = rank;
  if (!found) return null;
  const steps = Math.max(found.steps, 1);
  return section(
    "Optimizer",
    { definition: "optimizer-step", aside: per(rank) },
    facts([
      ["Optimizer", `${found.name}${found.implementation ? ` (${found.implementation})` : ""}`],
      ["Operators", format.count(found.operators / steps)],
      ["Launches", format.count(found.launches / steps)],
      ["On the host", format.duration(found.host_ns / steps)],
      found.launches > 0 && ["On the device", format.duration(found.device_ns / steps)],
    ]),
  );
}
