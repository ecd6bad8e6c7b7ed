// The look of the arms of a study: each has its own color and mark, the same in every chart.

import { chartText, ink } from "../components/chart.js";
import { h } from "../core/dom.js";

const MARKS = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross"];
const LETTERS = ["●", "■", "▲", "◆", "▼", "✚"];
const NAME_CHARACTERS = 24;
const NARROW_CHARACTERS = 14;
const BRIEF_CHARACTERS = 16; // a name of this length stays on one line in a table, e.g. "bf16-mixed"

/** The look of each arm by its name: {color, marker, row}. The first arm is at the top, in row 0. */
export function looks(arms) {
  return new Map(
    arms.map(({ name }, i) => [name, { color: ink(colorName(i)), marker: MARKS[i % MARKS.length], row: i }]),
  );
}

/** The marks of the arms, as a legend. */
export function armLegend(arms) {
  return h(
    "ul",
    { class: "legend" },
    arms.map(({ name }, i) => h("li", {}, armMark(i), h("span", { class: "name" }, name))),
  );
}

/** An arm's mark and name, for a cell of a table. */
export function armName(arms, name) {
  const place = arms.findIndex((arm) => arm.name === name);
  const kind = name.length <= BRIEF_CHARACTERS ? "name brief" : "name";
  return h("span", { class: "with-swatch" }, place < 0 ? null : armMark(place), h("span", { class: kind }, name));
}

/** An axis with a row for each arm, the first at the top. */
export function armAxis(arms, notes = []) {
  return {
    tickvals: arms.map((_, i) => i),
    ticktext: arms.map(({ name }, i) =>
      [wrapped(name), notes[i] ? chartText(notes[i]) : null].filter(Boolean).join("<br>"),
    ),
    range: [arms.length - 0.45, -0.55],
    showgrid: false,
    zeroline: false,
    fixedrange: true,
  };
}

/** A name in several lines, for a chart. A very long one loses its middle. */
function wrapped(name) {
  const width = innerWidth < 700 ? NARROW_CHARACTERS : NAME_CHARACTERS;
  const room = 3 * width;
  const text = name.length > room ? `${name.slice(0, room / 2)}…${name.slice(-room / 2 + 1)}` : name;
  const lines = text.match(new RegExp(`.{1,${width}}(?:[\\s]|$)|.{1,${width}}`, "gsu")) ?? [text];
  return lines.map((line) => chartText(line.trimEnd())).join("<br>");
}

/** The places of the points in a row, from its upper edge to its lower one, so that no point hides another. */
export function offset(number, count) {
  return count < 2 ? 0 : 0.34 * (number / (count - 1) - 0.5);
}

function armMark(place) {
  return h(
    "span",
    { class: "arm-mark", "aria-hidden": "true", style: { color: `var(--${colorName(place)})` } },
    LETTERS[place % LETTERS.length],
  );
}

function colorName(place) {
  return `arm-${(place % MARKS.length) + 1}`;
}
