// The building blocks of views: sections, tiles, notices, bars, legends.

import { h } from "../core/dom.js";
import { paint } from "../core/theme.js";
import * as format from "../text/format.js";
import { copyButton, suggestion } from "./copy.js";
import { term } from "./definitions.js";

/** A titled part of a view. `definition`: key of the title's definition; `aside`: a remark next to the title. */
export function section(title, { definition = null, aside = null } = {}, ...children) {
  return h(
    "section",
    { class: "part" },
    h(
      "div",
      { class: "part-head" },
      h("h2", {}, term(title, definition)),
      aside ? h("p", { class: "aside" }, aside) : null,
    ),
    children,
  );
}

/** Sections side by side if there is room. */
export function columns(...children) {
  return h("div", { class: "columns" }, children);
}

/** Key figures: {label, text, note, definition}. Those without a value are left out. */
export function tiles(items) {
  const shown = items.filter((item) => item && item.text !== format.NOT_AVAILABLE);
  if (shown.length === 0) return null;
  return h(
    "dl",
    { class: "tiles" },
    shown.map(({ label, text, note, definition }) =>
      h(
        "div",
        { class: "tile" },
        h("dt", {}, term(label, definition)),
        h("dd", {}, figure(text), note ? h("small", {}, note) : null),
      ),
    ),
  );
}

// A figure with a smaller unit. A long unit may have a line of its own.
function figure(value) {
  const [, number, unit] = /^([<>+-]?[\d.,]+) (\D+)$/.exec(value) ?? [];
  return number ? [number, unit.length > 8 ? " " : "\u00a0", h("span", { class: "unit" }, unit)] : value;
}

/** The reason why there is nothing to show. */
export function missing(reason) {
  return h("div", { class: "part missing" }, h("p", {}, suggestion(reason)));
}

/** The members `missing` and `render` of a view. It shows `reason(context)` unless that is null, and else `render(context)`. */
export function unlessMissing(reason, render) {
  const shown = (context) => {
    const why = reason(context);
    return why ? missing(why) : render(context);
  };
  return { missing: reason, render: shown };
}

/** A highlighted remark. */
export function notice(text, kind = "note") {
  return h("p", { class: `notice ${kind}` }, text);
}

/** All notes of a document in one box; null without notes. */
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
 * A bar of parts, with a legend that shows each figure.
 *
 * @param parts {label, value, color, text, definition}, with the name of a color from the style sheet.
 * @param total The value of the full width, by default the sum of the parts.
 * @param legend Whether the bar has its own legend.
 */
export function stack(parts, { title, total = null, legend: named = true } = {}) {
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
    named
      ? h(
          "ul",
          { class: "legend" },
          shown.map((part) =>
            h("li", {}, swatch(part.color), h("span", {}, term(part.label, part.definition)), h("b", {}, part.text)),
          ),
        )
      : null,
  );
}

const ARM_MARKS = { "arm-1": "●", "arm-2": "■", "arm-3": "▲", "arm-4": "◆", "arm-5": "▼", "arm-6": "✚" };

/** A small square in the color of a category or the like. The arms of a study also differ in their shapes. */
export function swatch(color) {
  if (color in ARM_MARKS) return h("span", { class: "arm-mark", "aria-hidden": "true", style: { color: paint(color) } }, ARM_MARKS[color]);
  return h("i", { class: "swatch", "aria-hidden": "true", style: { background: paint(color) } });
}

/** The legend of a chart: {label, color}. */
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

/** A command with a button that copies it. */
export function command(text) {
  return h("div", { class: "command-line" }, h("pre", { class: "command", tabindex: "0" }, h("code", {}, text)), copyButton(text));
}
