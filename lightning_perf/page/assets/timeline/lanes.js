// The timeline's data: the steps of every rank on one clock, and the parts of each bin.

import { largest, smallest } from "../core/numbers.js";

const WHOLE = 255; // the share of a part that fills its bin
const LANES = ["categories", "phases", "idle", "kernels", "operators", "modules"];

/**
 * The ranks of a report on a shared clock that starts at 0 with the first step; null without a timeline.
 *
 * A rank is {rank, row, steps: [{number, start, end, complete}], bins, lanes, queue, memory, gaps, shift}. All times are
 * in nanoseconds of the shared clock. `shift` turns them into times of the rank's recording.
 */
export function readRanks(report) {
  const known = report.ranks.map((rank, row) => ({ rank, row })).filter(({ rank }) => isWhole(rank));
  if (known.length === 0) return null;
  const { starts, aligned } = commonClock(known.map(({ rank }) => rank));
  const origin = smallest(known.map(({ rank }, i) => starts[i] + rank.breakdown.steps[0].start_ns));
  return { aligned, ranks: known.map(({ rank, row }, i) => onClock(rank, row, starts[i] - origin)) };
}

/** The parts of a bin: [{name, share}], the largest first. */
export function partsOf(lane, bin) {
  const parts = [];
  if (!lane) return parts;
  for (let at = lane.offset[bin]; at < lane.offset[bin] + 2 * lane.count[bin]; at += 2) {
    parts.push({ name: lane.names[lane.data[at]], share: lane.data[at + 1] / WHOLE });
  }
  return parts;
}

/** The bin of a rank at an instant; -1 outside of its steps. */
export function binAt(item, time) {
  const step = stepAt(item, time);
  if (step < 0) return -1;
  const { start, end } = item.steps[step];
  return step * item.bins + Math.min(item.bins - 1, Math.floor(((time - start) * item.bins) / Math.max(end - start, 1)));
}

/** The step of a rank at an instant, as an index; -1 outside of its steps. */
export function stepAt({ steps }, time) {
  let [low, high] = [0, steps.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle].start <= time) low = middle + 1;
    else high = middle;
  }
  return low > 0 && time < steps[low - 1].end ? low - 1 : -1;
}

/** Start and end of a bin. */
export function spanOf({ steps, bins }, bin) {
  const { start, end } = steps[Math.floor(bin / bins)];
  const at = bin % bins;
  return { start: start + ((end - start) * at) / bins, end: start + ((end - start) * (at + 1)) / bins };
}

/** The bins in which a name has its largest shares, as {bin, share}; empty if no bin lists it. */
export function binsWith(lane, name) {
  const code = lane ? lane.names.indexOf(name) : -1;
  const found = [];
  if (code < 0) return found;
  for (let bin = 0; bin < lane.count.length; bin += 1) {
    for (let at = lane.offset[bin]; at < lane.offset[bin] + 2 * lane.count[bin]; at += 2) {
      if (lane.data[at] === code) found.push({ bin, share: lane.data[at + 1] / WHOLE });
    }
  }
  return found;
}

// Whether the report holds the parts of every bin.
function isWhole({ timeline, breakdown }) {
  const bins = (timeline?.bins ?? 0) * breakdown.steps.length;
  return bins > 0 && unpack(timeline.categories)?.count.length === bins && unpack(timeline.phases)?.count.length === bins;
}

// The start of each recording on one clock. Machines with unsynchronized clocks have no common one: then the first step
// that all ranks recorded starts at the same time.
function commonClock(ranks) {
  const clocks = ranks.map((rank) => rank.clocks?.[0]?.clock_ns ?? 0);
  const spans = ranks.map((rank, i) => {
    const { steps } = rank.breakdown;
    const last = steps[steps.length - 1];
    return [clocks[i] - clocks[0] + steps[0].start_ns, clocks[i] - clocks[0] + last.start_ns + last.wall_ns];
  });
  const [from, to] = [largest(spans.map((span) => span[0])), smallest(spans.map((span) => span[1]))];
  const shortest = smallest(spans.map((span) => span[1] - span[0]));
  if (to - from >= shortest / 2) return { starts: clocks.map((clock) => clock - clocks[0]), aligned: false };
  const numbers = ranks.map((rank) => new Set(rank.breakdown.steps.map((step) => step.number)));
  const shared = ranks[0].breakdown.steps.find((step) => numbers.every((found) => found.has(step.number)));
  const first = (rank) => rank.breakdown.steps.find((step) => step.number === shared?.number) ?? rank.breakdown.steps[0];
  return { starts: ranks.map((rank) => -first(rank).start_ns), aligned: true };
}

function onClock(rank, row, shift) {
  const { timeline, breakdown, launches, memory, idle } = rank;
  const moved = (series) => series && { time: series.time_ns.map((time) => time + shift), value: series.value };
  const device = memory?.devices.find((item) => item.device !== null) ?? memory?.devices[0];
  return {
    rank,
    row,
    shift,
    bins: timeline.bins,
    steps: breakdown.steps.map((step) => ({
      number: step.number,
      complete: step.complete,
      start: step.start_ns + shift,
      end: step.start_ns + step.wall_ns + shift,
    })),
    lanes: Object.fromEntries(LANES.map((name) => [name, timeline[name] && unpack(timeline[name])])),
    queue: moved(launches?.queue?.series),
    memory: moved(device?.allocated),
    gaps: (idle?.longest ?? []).map((gap) => ({ ...gap, start: gap.start_ns + shift, end: gap.start_ns + gap.length_ns + shift })),
  };
}

// Runs of equal bins: the number of bins, the number of parts, and for each part its name and share.
function unpack({ names, data: text }) {
  let data;
  try {
    data = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  } catch {
    return null; // not made by this library
  }
  const [offset, count] = [[], []];
  for (let at = 0; at < data.length; at += 2 + 2 * data[at + 1]) {
    for (let i = 0; i < data[at]; i += 1) {
      offset.push(at + 2);
      count.push(data[at + 1]);
    }
  }
  return { names, data, offset, count };
}
