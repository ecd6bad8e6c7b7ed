// Gradients that are too small for FP16.

import * as column from "../../components/column.js";
import { notice, section } from "../../components/parts.js";
import { table } from "../../components/table.js";
import { h } from "../../core/dom.js";
import * as format from "../../text/format.js";
import { arithmeticLabel } from "../../text/labels.js";

/** Gradient underflow, layer by layer. */
export function underflow(found) {
  const named = found.layers.filter((layer) => layer.underflows).length;
  const exponent = (value) => (value === null ? format.NOT_AVAILABLE : `2${superscript(value)}`);
  return section(
    "Gradient underflow by layer",
    {
      definition: "subnormal-share",
      aside: `${format.countOf(found.samples, "sampled step")} at a scale of ${format.count(found.scale)}`,
    },
    named
      ? notice(
          `${format.countOf(named, "layer")} of ${found.layers.length} underflow${named === 1 ? "s" : ""} in FP16.`,
        )
      : notice("No layer underflows in FP16.", "good"),
    found.advice ? h("p", { class: "action" }, `${found.advice.text}.`) : null,
    table({
      id: "underflow",
      caption: "Gradient underflow by layer",
      rows: found.layers,
      sort: "subnormal_share",
      columns: [
        column.text("name", "Layer", { code: true, csv: "layer" }),
        column.text("underflows", "Underflows", {
          value: (row) => (row.vanished ? "all vanished" : row.underflows ? "yes" : "no"),
        }),
        column.text("arithmetic", "Computed in", { value: (row) => arithmeticLabel(row.arithmetic) }),
        column.share("subnormal_share", "Subnormal", {
          definition: "subnormal-share",
          bar: (row) => row.subnormal_share,
        }),
        column.share("zero_share", "Zero", { definition: "zero-share" }),
        column.number("median_exponent", "Median magnitude", { show: exponent }),
        column.number("headroom_doublings", "Scale headroom", {
          definition: "scale-headroom",
          show: (value) => (value === null ? format.NOT_AVAILABLE : format.countOf(value, "doubling")),
        }),
      ],
    }),
  );
}

function superscript(number) {
  return String(number).replace(/[-0-9]/g, (sign) => (sign === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[sign]));
}
