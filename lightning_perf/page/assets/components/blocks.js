// Draws the blocks of a document: headings, lines, lists, tables and code, with the words and figures of the document.

import { h } from "../core/dom.js";
import { NOT_AVAILABLE } from "../text/format.js";
import { term } from "./definitions.js";
import { command, notice, section } from "./parts.js";
import { name, table } from "./table.js";

const UNITS = { bytes: "_bytes", bandwidth: "_bytes_per_s", duration: "_ns", milliseconds: "_ms" };
const NAMES = ["name", "code"];
const NOTICES = { good: "good", warning: "note", bad: "high" };
const CLASSES = { strong: "headline", quiet: "aside" };
const LINK = /^https:\/\/github\.com\/[\w./-]+$/; // other addresses become no link
const LONG = 40; // a longer text is no figure
const EXTRA_PX = 1100;

/**
 * A part of a document's page; null if the document has no such part.
 *
 * @param before Content below the first heading.
 * @param show How to show a cell of a column, by the column's head: functions of its text.
 */
export function part({ parts }, name, { before = null, show = {} } = {}) {
  const groups = [];
  let tables = 0;
  const group = (title, definition, headed = false) => groups.push({ title, definition, headed, content: [] });
  const add = (...content) => {
    if (groups.length === 0) group(null);
    for (const node of content) groups.at(-1).content.push(node);
  };
  for (const block of parts?.[name] ?? []) {
    if (block.block === "table") {
      if (!block.rows.length) continue;
      tables += 1;
      const id = [name.split(".")[0], tables > 1 ? tables : null].filter(Boolean).join("-");
      if (block.title && groups.at(-1)?.headed) add(h("h3", {}, term(block.title, block.definition)));
      else if (block.title) group(block.title, block.definition);
      add(tableOf(block, id.replaceAll("_", "-"), [...new Set([groups.at(-1)?.title, block.title])].filter(Boolean).join(": ") || name, show));
    } else if (block.block === "heading") {
      group(block.text, block.definition, true);
    } else {
      add(block);
    }
  }
  if (groups.length === 0) return null;
  if (before) groups[0].content.unshift(before);
  return groups.map(({ title, definition, content }) =>
    title === null ? nodes(content) : section(title, { definition }, nodes(content)),
  );
}

// Blocks as elements. Lines with labels that follow each other are one list of facts.
function nodes(blocks) {
  const drawn = [];
  let labelled = [];
  let important = false;
  const flush = () => {
    if (labelled.length) drawn.push(h("dl", { class: important ? "verdict" : "facts" }, labelled));
    [labelled, important] = [[], false];
  };
  for (const block of blocks) {
    if (block.block === "line" && block.label && block.label !== "Note") {
      important ||= block.style === "strong";
      labelled.push(h("dt", {}, block.label.trim()), h("dd", { class: block.style === "strong" ? "next" : null }, spans(block)));
    } else {
      flush();
      drawn.push(DRAW[block.block]?.(block) ?? (block instanceof Node || Array.isArray(block) ? block : null));
    }
  }
  flush();
  return drawn;
}

const DRAW = {
  line: (line) => {
    if (!line.text?.length) return null;
    if (line.style === "command") return command(line.text);
    const kind = line.label ? "note" : NOTICES[line.style];
    return kind ? notice(spans(line), kind) : h("p", { class: CLASSES[line.style] }, spans(line));
  },
  listing: ({ lines }) => h("ul", { class: "sentences" }, lines.map((line) => h("li", {}, spans(line)))),
  code: ({ lines }) => command(lines.join("\n")),
  context: ({ blocks }) => nodes(blocks),
  details: ({ summary, blocks }) => h("details", { class: "fold" }, h("summary", {}, summary), nodes(blocks)),
};

function spans({ text = "" }) {
  return [text].flat().map((span) => {
    if (typeof span === "string") return span;
    const { style = "plain", link = "" } = span;
    if (LINK.test(link)) return h("a", { href: link, target: "_blank", rel: "noopener" }, span.text);
    if (style === "command") return h("code", {}, span.text);
    if (style === "strong") return h("b", {}, span.text);
    return style === "plain" ? span.text : h("span", { class: `tone ${style}` }, span.text);
  });
}

// A word with a style is an outcome. A troubled name has the color of a warning.
function styled(text, { style = "plain", troubled = false, detail = "" }, kind) {
  if (style !== "plain") return h("span", { class: `outcome ${style}` }, text);
  if (!troubled && !detail) return text;
  const shown = NAMES.includes(kind) ? name(text, kind === "code") : text;
  return h("span", { class: troubled ? "named tone warning" : "named" }, shown, detail && h("span", { class: "faint" }, detail));
}

function tableOf({ columns, rows }, id, caption, show) {
  const filled = (place) => place === 0 || rows.some((row) => ![undefined, "", NOT_AVAILABLE].includes(row[place].text ?? row[place]));
  const shown = columns.map((column, i) => columnOf(column, i, rows, show[column.head])).filter((_, i) => filled(i));
  return table({ id, caption, rows, columns: shown });
}

function columnOf({ head = "", kind = "figure", definition = null, extra = false }, place, rows, look) {
  const words = head.replaceAll("\n", " ") || "name";
  const text = (row) => row[place].text ?? row[place];
  const valued = rows.some((row) => row[place].value !== undefined);
  const worded = (row) => row[place].color || text(row).length > LONG;
  const textual = [...NAMES, "text"].includes(kind) || (!valued && rows.some(worded));
  const key = words
    .toLowerCase()
    .replace(/\(.*\)| of /g, " ")
    .trim()
    .replace(/[^\p{L}\p{N}]+/gu, "_");
  const full = (row) => `${text(row)}${row[place].detail ?? ""}`;
  return {
    key,
    title: /^\p{Ll}[\p{L} ]/u.test(words) ? words[0].toUpperCase() + words.slice(1) : words,
    kind: textual ? "text" : "number",
    csv: `${key}${UNITS[kind] ?? ""}`,
    definition,
    code: kind === "code",
    optional: extra ? EXTRA_PX : null,
    value: (row) => (valued && !textual ? (row[place].value ?? null) : full(row)),
    show: (_, row) => (look ? look(text(row)) : styled(text(row), row[place], kind)),
    swatch: (row) => row[place].color,
    bar: rows.some((row) => row[place].bar !== undefined) ? (row) => row[place].bar : null,
  };
}
