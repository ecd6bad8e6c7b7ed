// Named regions of CUDA graphs, and hardware counters.

import * as column from "../../components/column.js";
import { section } from "../../components/parts.js";
import { table } from "../../components/table.js";
import * as format from "../../text/format.js";
import { per } from "../../text/labels.js";

/** The device work of each named region of CUDA graphs; null without names. */
export function graphRegions(rank) {
  const { graph_regions: found } = rank;
  if (!found) return null;
  const steps = Math.max(found.steps, 1);
  return section(
    "Regions of CUDA graphs",
    { aside: `${per(rank)}. ${format.duration(found.unattributed_device_ns / steps)} is outside of named regions.` },
    table({
      id: "graph-regions",
      caption: "Regions of CUDA graphs",
      rows: found.rows,
      columns: [
        column.text("name", "Region", { csv: "region" }),
        column.perStep(steps, column.time("device_ns", "Device")),
        column.perStep(steps, column.time("backward_ns", "of it backward")),
        column.perStep(steps, column.count("calls", "Calls")),
      ],
    }),
  );
}

/** The samples of hardware counters in the recorded steps; null without samples. */
export function hardwareCounters({ counters }) {
  if (!counters) return null;
  const energy = counters.step_energy_j;
  return section(
    "Hardware counters",
    { aside: energy === null ? null : `${format.count(energy)} J per step` },
    table({
      id: "hardware-counters",
      caption: "Hardware counters",
      rows: counters.rows,
      columns: [
        column.text("name", "Counter", { csv: "counter" }),
        column.count("device", "Device"),
        column.count("mean", "Mean"),
        column.count("minimum", "Minimum"),
        column.count("maximum", "Maximum"),
        column.count("samples", "Samples"),
      ],
    }),
  );
}
