// Draws the blocks of a document: text, tables, figures and charts, with the words and figures of the document.

import { h } from "../core/dom.js";
import { markAddress } from "../core/links.js";
import { link } from "../core/state.js";
import { NOT_AVAILABLE } from "../text/format.js";
import { plot } from "./chart.js";
import { codeLine } from "./copy.js";
import { term } from "./definitions.js";
import { columns, command, missing, notes, notice, section, stack, tiles } from "./parts.js";
import { table } from "./table.js";
import { name } from "./table_controls.js";
import { tree } from "./tree.js";

const UNITS = { bytes: "_bytes", bandwidth: "_bytes_per_s", duration: "_ns", milliseconds: "_ms" };
const NAMES = ["name", "code"];
const NOTICES = { good: "good", warning: "note", bad: "high" };
const CLASSES = { strong: "headline", quiet: "aside" };
const SEVERITIES = { bad: "high", warning: "moderate" };
const LINK = /^https:\/\/github\.com\/[\w./-]+$/; // other addresses become no link
const LONG = 40; // a longer text is no figure

/** The reason of a document why a view has nothing to show, or null. */
export function reasonOf(id) {
  return ({ report, rank }) => {
    const reasons = report.parts?.[`missing.${(report.ranks ?? []).indexOf(rank)}`] ?? report.parts?.missing;
    return reasons?.find(({ label }) => label === id)?.text ?? null;
  };
}

/**
 * A view that shows parts of a document. Names in a list are side by side. A name that ends with a dot is a part of one
 * rank. The view says so if it has nothing to show.
 */
export function partsView(id, title, kinds, names) {
  const draw = ({ report, rank }, shown) =>
    shown.map((item) => {
      if (Array.isArray(item)) return side(draw({ report, rank }, item).filter(Boolean));
      return part(report, item.endsWith(".") ? `${item}${report.ranks.indexOf(rank)}` : item, { rank });
    });
  const reason = reasonOf(id);
  const render = (context) => {
    const why = reason(context);
    return [why ? missing(why) : null, draw(context, names)];
  };
  return { id, title, kinds, missing: reason, render };
}

// Parts side by side. A table needs more room than the chart before it.
function side(parts) {
  if (parts.length < 2) return parts;
  const [first, second] = parts.map(([part]) => part.querySelector?.("table"));
  return h("div", { class: !first && second ? "columns chart-and-table" : "columns" }, parts);
}

/**
 * A part of a document's page; null if the document has no such part.
 *
 * @param before Content below the first heading.
 * @param keeps Returns whether tables show the row of a name.
 * @param rank The rank that the names of tables belong to.
 */
export function part({ parts }, name, { before = null, keeps = () => true, rank = null } = {}) {
  const groups = [];
  let tables = 0;
  const id = () => {
    tables += 1;
    return [name.split(".")[0].replaceAll("_", "-"), tables > 1 ? tables : null].filter(Boolean).join("-");
  };
  const group = (title, more = {}) => groups.push({ title, ...more, content: [] });
  const add = (content) => {
    if (groups.length === 0) group(null);
    groups.at(-1).content.push(content);
  };
  for (const block of (parts?.[name] ?? []).filter(({ rows }) => rows?.length !== 0)) {
    if (block.block === "table" && block.title && !groups.at(-1)?.headed) group(block.title, block);
    if (block.block === "heading" && block.level !== 4) group(block.text, { ...block, headed: true });
    else add(block);
  }
  if (groups.length === 0) return null;
  if (before) groups[0].content.unshift(before);
  return groups.map(({ title, definition, aside, content }) => {
    const drawn = nodes(content, { id, title, keeps, rank });
    if (title !== null) return section(title, { definition, aside }, drawn);
    const important = content.some((block) => block.label_style === "strong");
    return important ? h("section", { class: "part", "aria-label": name[0].toUpperCase() + name.slice(1) }, drawn) : drawn;
  });
}

// Blocks as elements. Lines with labels that follow each other are one list of facts. The list of an outcome has a list of its own.
function nodes(blocks, place) {
  const drawn = [];
  let labelled = [];
  let important = false;
  let [remarks, pairs] = [[], []]; // notes in one box, and charts with titles side by side
  const flush = () => {
    drawn.push(notes(remarks), pairs.length > 1 ? columns(pairs) : pairs);
    [remarks, pairs] = [[], []];
    if (labelled.length) drawn.push(h("dl", { class: important ? "verdict" : "facts" }, labelled));
    [labelled, important] = [[], false];
  };
  for (const [i, block] of blocks.entries()) {
    if (block.block === "heading" && blocks[i + 1]?.block === "plot") {
      pairs.push(h("div", {}, DRAW.heading(block), plot(blocks[i + 1])));
    } else if (block.block === "plot" && blocks[i - 1]?.block === "heading") {
      continue;
    } else if (block.label === "Note") {
      remarks.push(spans(block));
    } else if (block.block === "line" && block.label) {
      important ||= block.label_style === "strong";
      const kind = block.style === "good" ? "next" : CLASSES[block.style];
      labelled.push(h("dt", {}, block.label.trim()), h("dd", { class: kind }, spans(block)));
    } else if (block.block === "listing" && important) {
      labelled.push(h("dt"), h("dd", {}, DRAW.listing(block)));
    } else {
      flush();
      if (block.block === "heading") place = { ...place, heading: block.text };
      drawn.push(block.block ? DRAW[block.block]?.(block, place) : block);
    }
  }
  flush();
  return drawn;
}

const DRAW = {
  line: (line) => {
    if (!line.text?.length) return null;
    if (line.style === "command" || line.copied) return command([line.text].flat().map((span) => span.text ?? span).join(""));
    const kind = NOTICES[line.style];
    if (line.range) return h("div", { class: "saving" }, h("b", {}, spans(line)), scale(line.range));
    return kind ? notice(spans(line), kind) : h("p", { class: CLASSES[line.style] }, spans(line));
  },
  heading: ({ text, definition }) => h("h3", {}, term(text, definition)),
  listing: ({ lines }) => h("ul", { class: "sentences" }, lines.map((line) => h("li", {}, spans(line)))),
  code: ({ lines }) => command(lines.join("\n")),
  context: ({ blocks }, place) => nodes(blocks, place),
  details: ({ summary, blocks }, place) => h("details", { class: "fold" }, h("summary", {}, summary), nodes(blocks, place)),
  table: (block, place) => {
    const named = block.title && block.title !== place.title;
    const caption = [place.title, named ? block.title : place.heading].filter(Boolean).join(": ");
    return [named ? h("h3", {}, term(block.title, block.definition)) : null, tableOf(block, caption, place)];
  },
  figures: ({ figures }) => tiles(figures),
  bar: ({ parts, ...more }) => stack(parts, more),
  plot,
  card,
};

function card({ title, mark, style, aside, summary, blocks }, place) {
  const kind = `finding ${SEVERITIES[style] ?? "low"}`;
  const head = (level) => [h(level, {}, title), h("span", { class: "severity" }, mark), aside ? h("span", { class: "aside" }, aside) : null];
  if (!summary) return h("article", { class: kind }, h("div", { class: "finding-head" }, head(place.title ? "h3" : "h2")), nodes(blocks, place));
  return h(
    "details",
    { class: kind },
    h("summary", { class: "finding-head" }, head("h3"), h("span", { class: "brief-saving" }, summary)),
    nodes(blocks, place),
  );
}

function scale([low, high]) {
  const ends = { "--low-end": `${100 * Math.max(0, low)}%`, "--high-end": `${Math.min(100, 100 * high)}%` };
  return h("span", { class: "saving-scale", "aria-hidden": "true" }, h("span", { style: ends }));
}

function spans({ text = "" }) {
  return [text].flat().map((span) => {
    if (typeof span === "string") return span;
    const { style = "plain", link: address = "" } = span;
    if (address.startsWith("#")) return h("a", { href: inner(address) }, span.text);
    if (LINK.test(address)) return h("a", { href: address, target: "_blank", rel: "noopener" }, span.text);
    if (span.outcome) return h("span", { class: `outcome ${style}` }, span.text);
    if (style === "command") return codeLine(span.text);
    if (style === "strong") return h("b", {}, span.text);
    return style === "plain" ? span.text : h("span", { class: `tone ${style}` }, span.text);
  });
}

// The address of a state of the page.
function inner(state) {
  return link(Object.fromEntries(new URLSearchParams(state.slice(1))));
}

// A word with a style is an outcome. A troubled name has the color of a warning.
function styled(text, { style = "plain", troubled = false, detail = "", link: state = "" }, kind) {
  if (state) return h("a", { href: inner(state) }, text);
  if (style === "quiet" && NAMES.includes(kind)) return h("span", { class: "sub" }, text);
  if (style !== "plain") return h("span", { class: `outcome ${style}` }, text);
  if (!troubled && !detail) return text;
  const shown = NAMES.includes(kind) ? name(text, kind === "code") : text;
  return h("span", { class: troubled ? "named tone warning" : "named" }, shown, detail && h("span", { class: "faint" }, detail));
}

function tableOf({ columns: all, rows, parents, details, lane }, caption, place) {
  const filled = (i) => i === 0 || rows.some((row) => !["", NOT_AVAILABLE].includes(row[i].text));
  const columns = all.map((column, i) => columnOf(column, i, rows)).filter((_, i) => filled(i));
  const marked = new Set(place.rank?.timeline?.[lane]?.names);
  const go = (row) => (marked.has(row[0].text.trimStart()) ? markAddress(lane, row[0].text.trimStart()) : null);
  const shown = { id: place.id(), caption, columns: [{ ...columns[0], go }, ...columns.slice(1)] };
  if (parents) return tree({ ...shown, rows, parents });
  const more = new Map((details ?? []).map((blocks, i) => [rows[i], blocks]));
  const unfolded = (row) => (more.get(row)?.length ? () => nodes(more.get(row), place) : null);
  return table({ ...shown, rows: rows.filter((row) => place.keeps(row[0].text)), details: unfolded });
}

function columnOf({ head = "", kind = "figure", definition = null, extra = null }, place, rows) {
  const words = head.replaceAll("\n", " ") || "name";
  const text = (row) => row[place].text;
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
    optional: extra,
    value: (row) => (valued && !textual ? (row[place].value ?? null) : full(row)),
    show: (row) => styled(text(row), row[place], kind),
    short: (row) => row[place].short,
    swatch: (row) => row[place].color,
    bar: rows.some((row) => row[place].bar !== undefined)
      ? (row) => row[place].bar
      : kind === "share" && !extra
        ? (row) => row[place].value
        : null,
  };
}
