// The layers of an FP8 training: scales, saturation and underflow.

import * as column from "../../components/column.js";
import { notice, section } from "../../components/parts.js";
import { table } from "../../components/table.js";
import * as format from "../../text/format.js";

const FLUSHED_LIMIT = 0.1;

/** The FP8 layers of a run. */
export function fp8Layers(found) {
  const troubled = found.rows.some((row) => row.saturated_steps > 0 || (row.flushed ?? 0) > FLUSHED_LIMIT);
  const magnitude = (value) => value.toPrecision(3);
  return section(
    "FP8 layers",
    {
      definition: "fp8-layers",
      aside: `${format.countOf(found.samples, "sampled step")}, ${found.library}`,
    },
    notice(found.summary, troubled ? "high" : "good"),
    table({
      id: "fp8",
      caption: "Tensors of the FP8 layers",
      rows: found.rows,
      columns: [
        column.text("layer", "Layer", { code: true }),
        column.text("tensor", "Tensor"),
        column.text("format", "Format"),
        column.number("smallest_largest", "Smallest maximum", { show: magnitude }),
        column.number("largest", "Largest maximum", { show: magnitude }),
        column.number("scale", "Scale", { show: magnitude }),
        column.share("flushed", "Flushed to zero", { definition: "flushed-share" }),
        column.share("saturated", "Saturated", { definition: "saturated-share" }),
        column.count("saturated_steps", "Saturated steps"),
        column.count("samples", "Samples"),
      ],
    }),
  );
}
