// Findings: the problem, its evidence, the fix and the estimated saving.

import { codeLine } from "../../components/copy.js";
import { h } from "../../core/dom.js";
import { link } from "../../core/state.js";
import * as format from "../../text/format.js";
import { per } from "../../text/labels.js";
import { viewOf } from "./finding_views.js";

/** The finding that saves most, in full. Savings are parts of the step of the rank that it is about. */
export function firstFinding(report) {
  const [finding] = report.findings;
  return h(
    "article",
    { class: `finding ${finding.severity}`, "aria-labelledby": "finding-1" },
    h("div", { class: "finding-head" }, title("h2", finding, 1, report)),
    body(finding, report),
  );
}

/** Further findings, the most to save first. Each is folded to its title and saving. `first` is the first one's number. */
export function otherFindings(report, findings, first) {
  return h(
    "div",
    { class: "findings" },
    findings.map((finding, i) =>
      h(
        "details",
        { class: `finding ${finding.severity}` },
        h("summary", { class: "finding-head" }, title("h3", finding, i + first, report), brief(finding, report)),
        body(finding, report),
      ),
    ),
  );
}

function title(level, finding, number, { ranks, lead }) {
  const several = (ranks[lead]?.metadata.world_size ?? 1) > 1;
  return [
    h(level, { id: `finding-${number}` }, `${number}. ${finding.title}`),
    h("span", { class: "severity" }, finding.severity),
    several && finding.rank !== null ? h("span", { class: "faint" }, `rank ${finding.rank}`) : null,
  ];
}

function body(finding, { ranks, lead }) {
  const rank = ranks[lead];
  const row = ranks.findIndex((item) => item.rank === finding.rank);
  return [
    finding.changes ? h("p", {}, h("b", {}, "Changes results: "), `${finding.changes}.`) : null,
    finding.evidence.map((line) => h("p", {}, line)),
    h("p", { class: "action" }, h("b", {}, "Fix: "), withCode(finding.action)),
    saving(finding, unit(finding, rank), whose(finding, rank)),
    h("p", { class: "row" }, evidenceLink(finding, row < 0 ? null : row), ruleLink(finding)),
  ];
}

function unit(finding, rank) {
  if (finding.per === "fit") return "of the fit";
  return rank ? per(rank) : "per step";
}

// The saving in a few words, for the folded finding.
function brief(finding, { ranks, lead }) {
  const { saving_low_ms: low, saving_high_ms: high } = finding;
  if (low === null || high === null) return null;
  return h("span", { class: "brief-saving" }, `saves ${range(low, high)} ${unit(finding, ranks[lead])}`);
}

function range(low, high) {
  const [least, most] = [format.duration(low * 1e6), format.duration(high * 1e6)];
  return least === most ? most : low > 0 ? `${least} to ${most}` : `up to ${most}`;
}

/** Findings of the recorded steps that the rest of the run or the state of the machine does not support, with the reason. */
export function heldBackList(heldBack) {
  return h(
    "ul",
    {},
    heldBack.map(({ finding, reason }) =>
      h("li", {}, `${finding.title}. `, h("span", { class: "faint" }, reason), " ", ruleLink(finding)),
    ),
  );
}

// The rank of the step that the shares refer to, if it is not the rank of the verdict.
function whose(finding, rank) {
  return !rank || finding.rank === null || finding.rank === rank.rank ? "" : ` of rank ${finding.rank}'s`;
}

// The view with the figures behind a finding.
function evidenceLink(finding, row) {
  const view = viewOf(finding.kind);
  if (!view) return null;
  const rank = row === null ? {} : { rank: row };
  return h("a", { class: "evidence", href: link({ ...rank, ...view.state }) }, `See ${view.title}`);
}

// The rule's ID, with a link to the page that explains it. Other addresses than those on GitHub become no link.
function ruleLink({ kind, page }) {
  if (!/^https:\/\/github\.com\/[\w./-]+$/.test(page ?? "")) return h("code", { class: "rule" }, kind);
  return h("a", { class: "rule", href: page, target: "_blank", rel: "noreferrer" }, kind);
}

const BASIS = { general: ", general range, not probed", probed: ", probed on this device" };

function saving(finding, ofWhat, whoseStep) {
  const { saving_low_ms: low, saving_high_ms: high, step_ms, model, basis, per: whole = "step" } = finding;
  if (low === null || high === null) return null;
  const exact = format.duration(low * 1e6) === format.duration(high * 1e6);
  const share = (part_ms) => format.share(part_ms / step_ms);
  const shares = step_ms ? ` (${low > 0 ? `${share(low)} to ` : ""}${share(high)}${whoseStep})` : "";
  const ends = step_ms
    ? {
        "--low-end": `${(100 * Math.max(0, low)) / step_ms}%`,
        "--high-end": `${Math.min(100, (100 * high) / step_ms)}%`,
      }
    : {};
  return [
    h(
      "div",
      { class: "saving" },
      h("b", {}, `Estimated saving: ${range(low, high)} ${ofWhat}${exact ? "" : shares}${BASIS[basis] ?? ""}`),
      step_ms
        ? h(
            "span",
            { class: "saving-scale", title: `estimated saving as a share of the ${whole}`, "aria-hidden": "true" },
            h("span", { style: ends }),
          )
        : null,
    ),
    model ? h("p", { class: "faint" }, model) : null,
  ];
}

// Calls and settings in a sentence, as `DataLoader(…, num_workers=4)`, are set as code and can be copied.
function withCode(text) {
  const code = /[A-Za-z_][\w.]*\((?:[^()]|\([^()]*\))*\)|\b[A-Za-z_]+(?:\.[a-z_]+)*=[\w"'.]*[\w"']/g;
  const parts = [];
  let from = 0;
  for (const found of text.matchAll(code)) {
    parts.push(text.slice(from, found.index), codeLine(found[0]));
    from = found.index + found[0].length;
  }
  return [...parts, text.slice(from)];
}
