// Findings: the problem, its evidence, the fix and the estimated saving.

import { h } from "../../core/dom.js";
import * as format from "../../text/format.js";
import { per } from "../../text/labels.js";

/** The findings of a report, the most to save first; savings are parts of the step of the rank that each is about. */
export function findingsList({ findings, ranks, lead }) {
  const rank = ranks[lead];
  const ofWhat = rank ? per(rank) : "per step";
  const several = (rank?.metadata.world_size ?? 1) > 1;
  return h(
    "div",
    { class: "findings" },
    findings.map((finding, i) => one(finding, i + 1, { ofWhat, several, whoseStep: whose(finding, rank) })),
  );
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

function one(finding, number, { ofWhat, several, whoseStep }) {
  return h(
    "article",
    { class: `finding ${finding.severity}`, "aria-labelledby": `finding-${number}` },
    h(
      "div",
      { class: "finding-head" },
      h("h3", { id: `finding-${number}` }, `${number}. ${finding.title}`),
      h("span", { class: "severity" }, finding.severity),
      ruleLink(finding),
      several && finding.rank !== null ? h("span", { class: "faint" }, `rank ${finding.rank}`) : null,
    ),
    finding.evidence.map((line) => h("p", {}, line)),
    h("p", { class: "action" }, h("b", {}, "Fix: "), withCode(finding.action)),
    saving(finding, ofWhat, whoseStep),
  );
}

// The rule's ID, with a link to the page that explains it. Other addresses than those on GitHub become no link.
function ruleLink({ kind, page }) {
  if (!/^https:\/\/github\.com\/[\w./-]+$/.test(page ?? "")) return h("code", { class: "rule" }, kind);
  return h("a", { class: "rule", href: page, target: "_blank", rel: "noreferrer" }, kind);
}

const BASIS = { general: ", general range, not probed", probed: ", probed on this device" };

function saving({ saving_low_ms: low, saving_high_ms: high, step_ms, model, basis }, ofWhat, whoseStep) {
  if (low === null || high === null) return null;
  const [least, most] = [format.duration(low * 1e6), format.duration(high * 1e6)];
  const share = (part_ms) => format.share(part_ms / step_ms);
  const shares = step_ms ? ` (${low > 0 ? `${share(low)} to ` : ""}${share(high)}${whoseStep})` : "";
  const range = least === most ? most : low > 0 ? `${least} to ${most}` : `up to ${most}`;
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
      h("b", {}, `Estimated saving: ${range} ${ofWhat}${least === most ? "" : shares}${BASIS[basis] ?? ""}`),
      step_ms
        ? h(
            "span",
            { class: "saving-scale", title: "estimated saving as a share of the step", "aria-hidden": "true" },
            h("span", { style: ends }),
          )
        : null,
    ),
    model ? h("p", { class: "faint" }, model) : null,
  ];
}

// Calls and settings in a sentence, as `DataLoader(…, num_workers=4)`, are set as code.
function withCode(text) {
  const code = /[A-Za-z_][\w.]*\((?:[^()]|\([^()]*\))*\)|\b[A-Za-z_]+(?:\.[a-z_]+)*=[\w"'.]*[\w"']/g;
  const parts = [];
  let from = 0;
  for (const found of text.matchAll(code)) {
    parts.push(text.slice(from, found.index), h("code", {}, found[0]));
    from = found.index + found[0].length;
  }
  return [...parts, text.slice(from)];
}
