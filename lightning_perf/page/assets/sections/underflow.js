// Gradients that are too small for FP16.

import { h } from "../dom.js";
import * as format from "../format.js";
import { columns, notice, section } from "../parts.js";
import { table } from "../table.js";
import { arithmeticLabel } from "../words.js";

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
      sort: "subnormal",
      columns: [
        { key: "name", title: "Layer", kind: "text", code: true, csv: "layer", value: (row) => row.name },
        {
          key: "underflows",
          title: "Underflows",
          kind: "text",
          csv: "underflows",
          value: (row) => (row.vanished ? "all vanished" : row.underflows ? "yes" : "no"),
        },
        {
          key: "arithmetic",
          title: "Computed in",
          kind: "text",
          csv: "arithmetic",
          value: (row) => arithmeticLabel(row.arithmetic),
        },
        {
          key: "subnormal",
          title: "Subnormal",
          kind: "number",
          csv: "subnormal_share",
          definition: "subnormal-share",
          value: (row) => row.subnormal_share,
          show: format.share,
          bar: (row) => row.subnormal_share,
        },
        {
          key: "zero",
          title: "Zero",
          kind: "number",
          csv: "zero_share",
          definition: "zero-share",
          value: (row) => row.zero_share,
          show: format.share,
        },
        {
          key: "median",
          title: "Median size",
          kind: "number",
          csv: "median_exponent",
          value: (row) => row.median_exponent,
          show: exponent,
        },
        {
          key: "headroom",
          title: "Scale headroom",
          kind: "number",
          csv: "headroom_doublings",
          definition: "scale-headroom",
          value: (row) => row.headroom_doublings,
          show: (value) => (value === null ? format.NOT_AVAILABLE : `${value} doublings`),
        },
      ],
    }),
  );
}

function superscript(number) {
  return String(number).replace(/[-0-9]/g, (sign) => (sign === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[sign]));
}
