// What views are put together from: sections, tiles, notices, bars, legends.

import { h, prose } from "../core/dom.js";
import { paint } from "../core/theme.js";
import * as format from "../text/format.js";
import { term } from "./definitions.js";

/** A titled part of a view. `definition`: key of what its title means; `aside`: a remark beside the title. */
export function section(title, { definition = null, aside = null, wide = true } = {}, ...children) {
  return h(
    "section",
    { class: wide ? "part" : "part half" },
    h(
      "div",
      { class: "part-head" },
      h("h2", {}, term(title, definition)),
      aside ? h("p", { class: "aside" }, aside) : null,
    ),
    children,
  );
}

/** Sections side by side where there is room. */
export function columns(...children) {
  return h("div", { class: "columns" }, children);
}

/** A chart and the table of its figures, side by side where there is room. */
export function chartAndTable(...children) {
  return h("div", { class: "columns chart-and-table" }, children);
}

/** Key figures: {label, value, note, definition}; those without a value are left out. */
export function tiles(items) {
  const shown = items.filter((item) => item && item.value !== null && item.value !== format.NOT_AVAILABLE);
  if (shown.length === 0) return null;
  return h(
    "dl",
    { class: "tiles" },
    shown.map(({ label, value, note, definition }) =>
      h(
        "div",
        { class: "tile" },
        h("dt", {}, term(label, definition)),
        h("dd", {}, figure(value), note ? h("small", {}, note) : null),
      ),
    ),
  );
}

// A figure with its unit set smaller; a long unit may stand on a line of its own.
function figure(value) {
  const [, number, unit] = /^([<>+-]?[\d.,]+) (\D+)$/.exec(value) ?? [];
  return number ? [number, unit.length > 8 ? " " : "\u00a0", h("span", { class: "unit" }, unit)] : value;
}

/** Why there is nothing to show. */
export function missing(reason) {
  return h("div", { class: "part missing" }, h("p", {}, prose(reason)));
}

/** The members `missing` and `render` of a view: it shows `reason(context)` where that is not null, else `render(context)`. */
export function unlessMissing(reason, render) {
  const shown = (context) => {
    const why = reason(context);
    return why ? missing(why) : render(context);
  };
  return { missing: reason, render: shown };
}

/** A remark that the reader should not miss. */
export function notice(text, kind = "note") {
  return h("p", { class: `notice ${kind}` }, text);
}

/** Remarks of a document, together; null without any. */
export function notes(texts) {
  if (texts.length < 2) return texts.map((text) => notice(text));
  return h(
    "ul",
    { class: "notice note sentences" },
    texts.map((text) => h("li", {}, text)),
  );
}

/** A sentence below a title. */
export function lead(...children) {
  return h("p", { class: "lead" }, children);
}

/**
 * A bar of parts, with a legend that tells each figure.
 *
 * `parts`: {label, value, color, text, definition}; `color` is a name of the style sheet's. `total`: what the full width
 * stands for; the parts' sum when left out.
 */
export function stack(parts, { title, total = null } = {}) {
  const shown = parts.filter((part) => part.value > 0);
  const whole = total ?? shown.reduce((sum, part) => sum + part.value, 0);
  return h(
    "div",
    { class: "stack" },
    h(
      "div",
      {
        class: "stack-bar",
        role: "img",
        "aria-label": `${title}: ${shown.map((part) => `${part.label} ${part.text}`).join(", ")}`,
      },
      shown.map((part) =>
        h("span", {
          title: `${part.label}: ${part.text}`,
          style: { width: `${(100 * part.value) / whole}%`, background: paint(part.color) },
        }),
      ),
    ),
    h(
      "ul",
      { class: "legend" },
      shown.map((part) =>
        h("li", {}, swatch(part.color), h("span", {}, term(part.label, part.definition)), h("b", {}, part.text)),
      ),
    ),
  );
}

/** A `stack` of times that are sums over some steps: parts without `text`, which tells the mean per step. */
export function timeStack(parts, steps, options) {
  const texts = parts.map((part) => ({ ...part, text: format.duration(part.value / steps) }));
  return stack(texts, options);
}

/** The colour of a category or the like, as a small square. */
export function swatch(color) {
  return h("i", { class: "swatch", "aria-hidden": "true", style: { background: paint(color) } });
}

/** What the colours of a chart stand for: {label, color}. */
export function legend(items) {
  return h(
    "ul",
    { class: "legend" },
    items.map((item) => h("li", {}, swatch(item.color), item.label)),
  );
}

/** A list of facts: [label, value, definition]. */
export function facts(rows) {
  const shown = rows.filter((row) => row && row[1] !== null && row[1] !== undefined && row[1] !== format.NOT_AVAILABLE);
  return h(
    "dl",
    { class: "facts" },
    shown.map(([label, value, definition]) => [h("dt", {}, term(label, definition)), h("dd", {}, value)]),
  );
}

/** A command to copy. */
export function command(text) {
  return h("pre", { class: "command", tabindex: "0" }, h("code", {}, text));
}
