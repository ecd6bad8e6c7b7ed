// The figures of a language model: tokens, padding, FLOPs per token, attention, and repeated forward work.

import * as column from "../../components/column.js";
import { facts, section } from "../../components/parts.js";
import { tableSection } from "../../components/table.js";
import * as format from "../../text/format.js";

/** The tokens of a step, and the compute per token. */
export function languageModel(model) {
  const { tokens_per_second: rate, padding, flops_per_token: flops, formula_flops_per_token: formula } = model;
  return section(
    "Language model",
    { definition: "tokens" },
    facts([
      ["Tokens per step", format.count(model.tokens_per_step)],
      rate === null ? null : ["Under the profiler", format.rate(rate, "tokens")],
      padding === null ? null : ["Padding", format.share(padding)],
      rate === null || !padding ? null : ["Without padding", format.rate(rate * (1 - padding), "tokens")],
      flops === null ? null : ["FLOPs per token", format.flops(flops)],
      flops === null || !formula ? null : ["Relative to the formula 6N + 12·L·d·T", format.ratio(flops / formula)],
      model.parameters === null ? null : ["Parameters N", format.count(model.parameters)],
      model.formula_mfu === null ? null : ["MFU by the formula", format.share(model.formula_mfu)],
    ]),
  );
}

/** The implementations of attention, and their inputs. */
export function attentionPart(attention) {
  const steps = Math.max(attention.steps, 1);
  return tableSection("Attention", {
    definition: "attention",
    id: "attention",
    caption: "Attention per step",
    rows: attention.kinds.map((kind) => ({ ...kind, calls: kind.calls / steps, time_ns: kind.time_ns / steps, inputs: inputs(kind) })),
    columns: [
      column.text("implementation", "Implementation"),
      column.count("calls", "Calls"),
      column.time("time_ns", attention.on_device ? "Device time" : "Host time", { csv: "time_ns" }),
      column.text("inputs", "Inputs"),
    ],
  });
}

function inputs(kind) {
  return [
    kind.query.length ? `${kind.query.join("×")} queries` : null,
    kind.keys ? `${format.count(kind.keys)} keys` : null,
    kind.type.replace("c10::", ""),
    kind.causal ? "causal" : null,
    kind.mask ? "with a mask" : null,
    kind.dropout ? `dropout ${kind.dropout}` : null,
  ]
    .filter(Boolean)
    .join(", ");
}

/** The forward work that the backward repeats. */
export function recomputePart(repeated) {
  return section(
    "Gradient checkpointing",
    { definition: "repeated-forward-work" },
    facts([
      [
        "Repeated forward work",
        `${format.duration(repeated.time_ns / Math.max(repeated.steps, 1))} ${repeated.on_device ? "of the device" : "of the host"} per step`,
      ],
    ]),
  );
}
