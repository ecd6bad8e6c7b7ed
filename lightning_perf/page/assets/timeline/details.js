// The chosen bin in figures: its categories, phase, idle time, kernels, operators and modules, with links.

import { codeLine, copyButton } from "../components/copy.js";
import { swatch } from "../components/parts.js";
import { h } from "../core/dom.js";
import { address, link } from "../core/state.js";
import * as format from "../text/format.js";
import { label } from "../text/labels.js";
import { partsOf, spanOf } from "./lanes.js";
import { markAddress, tableLink } from "../core/links.js";
import { fileAt, openDock, perfettoAddress, rangeIn, seeDock, tracesOf } from "./perfetto.js";

/** One sentence about a bin, for readers who hear the page. */
export function describeBin(item, bin, marked) {
  const span = spanOf(item, bin);
  const step = item.steps[Math.floor(bin / item.bins)];
  const parts = partsOf(item.lanes.categories, bin).slice(0, 3);
  const shares = parts.map(({ name, share }) => `${label("categories", name)} ${format.share(share)}`).join(", ");
  const phase = partsOf(item.lanes.phases, bin)[0];
  return `${marked ? `Step ${step.number}` : "Recording"}, ${format.duration(span.start - step.start)} after its start: ${shares || "nothing recorded"}${phase ? `; phase ${label("phases", phase.name)}` : ""}.`;
}

/** The details of a bin. */
export function binDetails(context, item, bin, rankName) {
  const span = spanOf(item, bin);
  const step = item.steps[Math.floor(bin / item.bins)];
  const marked = item.rank.breakdown.marked;
  const length = span.end - span.start;
  const gap = item.gaps.find(({ start, end }) => start < span.end && end > span.start);
  const part = (lane, table) =>
    item.lanes[lane] &&
    list(partsOf(item.lanes[lane], bin), ({ name, share }) => [
      swatch(name),
      label(table, name),
      h("b", {}, format.duration(share * length)),
      h("span", { class: "faint" }, format.share(share)),
    ]);
  const named = (lane) =>
    item.lanes[lane] &&
    list(partsOf(item.lanes[lane], bin), ({ name, share }) => [
      h("a", { href: tableLink(lane, name), title: name }, h("code", {}, name)),
      h("span", { class: "faint" }, format.share(share)),
      h(
        "a",
        {
          class: "find",
          href: markAddress(lane, name, { rank: item.row }),
          "aria-label": `Mark every bin with ${name}`,
        },
        "mark",
      ),
    ]);
  return [
    h(
      "div",
      { class: "tl-bin-head" },
      h("h3", {}, `${marked ? `Step ${step.number}` : "Recording"}, ${format.duration(span.start - step.start)} after its start`),
      h("p", { class: "faint" }, `${rankName ? `${rankName}, ` : ""}${format.duration(length)} long`),
      copyButton(address, { name: "Copy a link to this instant", shown: "Copy link" }),
      context.source.live ? perfetto(context, item, span) : null,
    ),
    context.source.live ? null : viewCommand(item, span),
    h(
      "div",
      { class: "tl-facts" },
      fact("Time", part("categories", "categories")),
      fact("Phase", part("phases", "phases")),
      fact("Device idle while the host was", part("idle", "gaps")),
      fact("Kernels and copies", named("kernels")),
      fact("Operators on the host", named("operators")),
      fact("Modules", named("modules")),
    ),
    gap
      ? h(
          "p",
          {},
          swatch(gap.cause),
          ` In a gap of ${format.duration(gap.length_ns)}: ${label("gaps", gap.cause)}. ${gap.remedy}. `,
          h("a", { href: link({ view: "launches", rank: item.row }) }, "All long gaps"),
        )
      : null,
  ];
}

// The command that opens Perfetto at the instant, for a page without a server.
function viewCommand(item, span) {
  const file = fileAt(item, span.start);
  if (!file.path) return null;
  const at = file.file_ns === null ? "" : ` --at ${(file.file_ns / 1e3).toFixed(3)}`;
  return h("p", {}, "In Perfetto: ", codeLine(`lightning-perf view ${quote(file.path)}${at}`));
}

// Perfetto at the instant, in the page or in a tab.
function perfetto({ source, run }, item, span) {
  const file = fileAt(item, span.start);
  const trace = tracesOf(run).find(({ name }) => name === file.name) ?? (run.files ? tracesOf(run)[0] : null);
  if (!trace) return null;
  const range = rangeIn(item, span);
  const open = () => {
    openDock({ source, run }, trace.index, { item, span });
    seeDock();
  };
  return [
    h(
      "button",
      { type: "button", class: "tl-perfetto", on: { click: open } },
      "Open in Perfetto",
    ),
    h(
      "a",
      { class: "button", target: "_blank", rel: "noopener", href: perfettoAddress(source, run, trace.index, { range }) },
      "In its own tab",
    ),
  ];
}

/** Quote a path for a POSIX shell. */
export function quote(path) {
  return /^[\w@%+=:,./-]+$/.test(path) ? path : `'${path.replaceAll("'", "'\"'\"'")}'`;
}

function fact(title, content) {
  return content ? h("div", {}, h("h4", {}, title), content) : null;
}

function list(parts, show) {
  return parts.length ? h("ul", {}, parts.map((part) => h("li", {}, show(part)))) : null;
}
