// The shared axis of time. Long stretches without a step, e.g. between two recorded windows, take little room on it.

import * as format from "../text/format.js";

const LONG = 0.25; // a stretch without steps of this share of the steps' time is shortened …
const SHORT = 0.02; // … to this share
const MOST_ZOOM = 20_000; // bounds the zoom

/** The axis over the steps of all ranks, with `place` and `time` to convert between instants and places from 0 to 1. */
export function makeAxis(ranks) {
  const spans = ranks
    .flatMap(({ steps }) => steps)
    .map(({ start, end }) => [start, end])
    .sort((a, b) => a[0] - b[0]);
  const busy = [];
  for (const [start, end] of spans) {
    const last = busy[busy.length - 1];
    if (last && start <= last[1]) last[1] = Math.max(last[1], end);
    else busy.push([start, Math.max(end, start + 1)]);
  }
  const total = busy.reduce((sum, [start, end]) => sum + end - start, 0);
  const pieces = []; // {from, to: instants; begin, end: places}
  const cuts = [];
  let at = 0;
  const add = (from, to, length) => {
    pieces.push({ from, to, begin: at, end: at + length });
    at += length;
  };
  busy.forEach(([start, end], i) => {
    const before = i ? start - busy[i - 1][1] : 0;
    if (before > LONG * total) {
      cuts.push({ from: busy[i - 1][1], to: start });
      add(busy[i - 1][1], start, SHORT * total);
    } else if (before > 0) {
      add(busy[i - 1][1], start, before);
    }
    add(start, end, end - start);
  });
  for (const piece of pieces) [piece.begin, piece.end] = [piece.begin / at, piece.end / at];
  const convert = (value, from, to, begin, end) => {
    let [low, high] = [0, pieces.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (pieces[middle][to] < value) low = middle + 1;
      else high = middle;
    }
    const piece = pieces[low];
    const part = (value - piece[from]) / (piece[to] - piece[from]);
    return piece[begin] + Math.max(0, Math.min(1, part)) * (piece[end] - piece[begin]);
  };
  return {
    cuts,
    first: busy[0][0],
    last: busy[busy.length - 1][1],
    least: 1 / MOST_ZOOM,
    place: (time) => convert(time, "from", "to", "begin", "end"),
    time: (place) => convert(place, "begin", "end", "from", "to"),
  };
}

/** A part of the axis, {from, to}, as places. It keeps its length and stays on the axis. */
export function clampRange({ from, to }, least) {
  const length = Math.min(1, Math.max(least, to - from));
  const begin = Math.max(0, Math.min(1 - length, from + (to - from - length) / 2));
  return { from: begin, to: begin + length };
}

/** The range after a zoom by a factor, in which the place `about` stays where it is. */
export function zoomed({ from, to }, factor, about, least) {
  const length = Math.min(1, Math.max(least, (to - from) * factor));
  const begin = about - ((about - from) * length) / (to - from);
  return clampRange({ from: begin, to: begin + length }, least);
}

/** Instants for labels between two instants, at round distances: [{time, text}], at most `most`. */
export function ticks(start, end, most) {
  const rough = (end - start) / Math.max(most, 1);
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= rough) ?? 10 * power;
  const found = [];
  for (let time = Math.ceil(start / step) * step; time <= end && found.length <= most; time += step) {
    found.push({ time, text: label(time, step) });
  }
  return found;
}

// With as many digits as tell neighbours apart.
function label(time, step) {
  if (time === 0) return "0";
  const [factor, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]].find(([size]) => Math.abs(time) >= size) ?? [1, "ns"];
  const places = Math.max(0, Math.ceil(Math.log10(factor / step) - 1e-9));
  return places > 6 ? format.duration(time) : `${(time / factor).toFixed(places)} ${unit}`;
}
