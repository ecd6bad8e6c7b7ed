// The source of the documents: the page itself (a self-contained file), or the server of the page.

const POLL_MS = 1000;

/** A document is not available; the message is for the reader. */
export class SourceError extends Error {}

/** The name of a run for readers. */
export const titleOf = (run) => run.title ?? run.name;

/** The source for this page. */
export function openSource() {
  const embedded = document.getElementById("document");
  return embedded === null ? new ServerSource() : new EmbeddedSource(embedded);
}

/** A file next to the page's modules, as JSON. */
export async function asset(name) {
  const embedded = document.getElementById(`asset-${name}`);
  return embedded === null ? getJson(`static/${name}`) : JSON.parse(embedded.textContent);
}

class EmbeddedSource {
  live = false;

  constructor(element) {
    this.name = element.dataset.name;
    this.kind = element.dataset.kind;
    this.text = element.textContent;
  }

  async runs() {
    return { runs: [{ name: this.name, kind: this.kind, updated_s: null, files: 0 }], notes: [] };
  }

  async document() {
    this.parsed ??= JSON.parse(this.text);
    return this.parsed;
  }
}

class ServerSource {
  live = true;

  /** {runs: [{name, kind, updated_s, files}], notes: [string]} */
  async runs() {
    return getJson("data/runs");
  }

  /**
   * The document of a run: its report, its study's comparison or its trade-off table.
   *
   * `progress({done, message})` is called while the server works; `signal` ends the wait.
   */
  async document(run, { progress = () => {}, signal } = {}) {
    const address = { study: "data/study", inference: "data/tradeoff" }[run.kind] ?? "data/report";
    return poll(`${address}?${new URLSearchParams({ run: run.name })}`, progress, signal);
  }

  /** The changes from one run to another, both given by name. */
  async diff(before, after, { progress = () => {}, signal } = {}) {
    return poll(`data/diff?${new URLSearchParams({ run: before, other: after })}`, progress, signal);
  }

  /** Address of a recorded file of a run. */
  trace(name, file) {
    return new URL(`trace?${new URLSearchParams({ run: name, file })}`, location.href).href;
  }
}

async function poll(address, progress, signal) {
  for (;;) {
    const response = await request(address, signal);
    const body = await parse(response);
    if (response.status !== 202) return body;
    progress(body);
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    signal?.throwIfAborted();
  }
}

async function getJson(address, signal) {
  return parse(await request(address, signal));
}

async function request(address, signal) {
  try {
    return await fetch(address, { signal, headers: { Accept: "application/json" } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new SourceError("The server does not answer. Is it still running?");
  }
}

async function parse(response) {
  let body;
  try {
    body = await response.json();
  } catch {
    throw new SourceError(`The server's answer cannot be read (status ${response.status}).`);
  }
  if (!response.ok) throw new SourceError(body.message ?? `The server refuses (status ${response.status}).`);
  return body;
}
