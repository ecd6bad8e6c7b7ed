// Starts the page. It fetches and shows the selected document, and does so again whenever the state or the data change.

import { loadDefinitions } from "../components/definitions.js";
import { missing } from "../components/parts.js";
import { fill } from "../core/dom.js";
import { asset, openSource, SourceError, titleOf } from "../core/source.js";
import { read, subscribe, write } from "../core/state.js";
import { applyTheme, onSystemTheme } from "../core/theme.js";
import { loadLabels } from "../text/labels.js";
import { buildShell } from "./shell.js";
import { viewsFor } from "./views.js";

const RELOAD_MS = 30_000;
const LOOK_MS = 2_000; // before the first run exists

const source = openSource();
let shell;
let listing = { runs: [], notes: [] };
let shown = {}; // the run and document on display
let request = null; // cancels the wait for a document that is no longer selected

async function start() {
  applyTheme(read().theme);
  const first = ask(); // at the same time as the page's own files
  loadDefinitions(await asset("text/definitions.json"));
  shell = buildShell({ live: source.live });
  fill(document.getElementById("app"), shell.element);
  subscribe(show);
  onSystemTheme(() => show(read()));
  await reload(first);
}

// Asks the server for its data at intervals. A view is drawn again only when its own data have changed.
async function reload(answer = ask()) {
  await take(await answer);
  if (source.live) setTimeout(() => reload(), listing.runs.length ? RELOAD_MS : LOOK_MS);
}

// The runs, or the reason why they cannot be listed.
async function ask() {
  try {
    return await source.runs();
  } catch (error) {
    if (!(error instanceof SourceError)) throw error;
    return error;
  }
}

async function take(answer) {
  if (answer instanceof SourceError) {
    shell.status(answer.message);
    if (listing.runs.length === 0) shell.message("No data", answer.message);
    return;
  }
  const before = listing;
  listing = answer;
  if (JSON.stringify(before) !== JSON.stringify(listing) || !shown.run) await show(read(), { onlyNew: true });
  const known = new Set(before.runs.map((run) => run.name));
  const came = listing.runs.filter((run) => !known.has(run.name)).map(titleOf);
  if (known.size && came.length) {
    shell.status(came.length === 1 ? `New run: ${came[0]}` : `${came.length} new runs.`);
  }
}

async function show(state, { onlyNew = false } = {}) {
  applyTheme(state.theme);
  const run = listing.runs.find((item) => item.name === state.run) ?? (state.run ? null : newest(listing.runs));
  // The address names the run, so that a newer run does not replace it, here or for others who open the link.
  if (source.live && run && !state.run) write({ run: run.name }, { quiet: true });
  shell.runs(listing, run, state);
  if (!run) {
    shown = {};
    shell.message(...(state.run ? unknownRun(state.run) : noRuns()));
    return;
  }
  const fresh = shown.run?.name === run.name && shown.run.updated_s === run.updated_s;
  if (fresh ? onlyNew : !(await load(run))) return;
  render(read());
}

async function load(run) {
  request?.abort();
  const mine = new AbortController();
  request = mine;
  const again = shown.run?.name === run.name;
  try {
    const progress = (report) => again || shell.progress(titleOf(run), report);
    if (source.live && !again) shell.progress(titleOf(run), { done: null, message: "Reading …" });
    const data = await source.document(run, { progress, signal: mine.signal });
    if (request !== mine) return false;
    shown = { run, document: data };
    loadLabels(data.labels);
    if (again) shell.status("New data: the figures are updated.");
    return true;
  } catch (error) {
    if (error.name === "AbortError" || request !== mine) return false;
    if (!(error instanceof SourceError)) throw error;
    if (again) shell.status(error.message);
    else shell.message(`The run ${titleOf(run)} cannot be shown`, error.message);
    return false;
  }
}

function render(state) {
  const views = viewsFor(shown.run.kind);
  const view = views.find((item) => item.id === state.view) ?? views[0];
  const data = shown.document;
  const ranks = data.ranks ?? [];
  const row = Number(state.rank ?? data.lead ?? 0);
  const rank = ranks[row] ?? ranks[data.lead] ?? null;
  const context = { report: data, rank, run: shown.run, source, runs: listing.runs };
  const empty = views
    .filter((item) => item.missing)
    .map((item) => ({ view: item, reason: item.missing(context) }))
    .filter(({ reason }) => reason);
  shell.views(views, view, empty);
  shell.ranks(ranks, rank, data.lead);
  shell.show(view, () => drawn(view, { ...context, state, empty }));
  performance.mark("figures");
}

function drawn(view, context) {
  try {
    return view.render(context);
  } catch (error) {
    reportError(error);
    return missing(`This view cannot be drawn (${error.message}). Please report this error together with the document.`);
  }
}

function newest(runs) {
  return runs.reduce((best, run) => (best && best.updated_s >= run.updated_s ? best : run), undefined);
}

function unknownRun(name) {
  return [`The run ${name} does not exist`, "The link names a run that does not exist (any more). Choose another one above."];
}

function noRuns() {
  return [
    "No runs yet",
    "This folder contains no reports and no PyTorch traces. Train with PerfCallback(), or write traces with " +
      "torch.profiler.tensorboard_trace_handler. New runs appear here without a reload.",
  ];
}

start();
