// Charts: a thin wrapper around Plotly. Plotly loads when the first chart comes into sight.

import { fill, h, visible } from "../core/dom.js";
import { color } from "../core/theme.js";
import { legend } from "./parts.js";

let loading = null;
const waiting = new Map(); // charts that have not come into sight yet, with their draw functions

/**
 * Create a chart. Call `redraw()` of the element after a change.
 *
 * @param title A description for readers who cannot see the chart.
 * @param draw Returns Plotly's {data, layout} with colors from `ink`. It is called again for another theme. An axis with
 *   `measured` shows amounts: a note below the chart names the axes that leave out 0.
 * @param height In pixels.
 */
export function chart({ title, draw, height = 280 }) {
  const box = h("div", { class: "chart", role: "img", "aria-label": title, style: { height: `${height}px` } });
  const reset = h("button", { type: "button", class: "reset", hidden: true, on: { click: () => frame.redraw() } }, "Reset zoom");
  const note = h("p", { class: "aside chart-note" });
  const frame = h("div", { class: "chart-frame" }, box, reset, note);
  let measured = []; // axes whose start the reader must know
  const figure = () => {
    const { data, layout } = draw();
    measured = AXES.filter(({ key }) => layout[key]?.measured);
    const axes = Object.entries({ xaxis: {}, yaxis: {}, ...layout }).filter(([key]) => AXIS.test(key));
    const styled = Object.fromEntries(axes.map(([key, settings]) => [key, axis(settings)]));
    return [data, { ...themed(), ...layout, height, ...styled }, CONFIG];
  };
  const mark = () => {
    const cut = measured.filter(({ key }) => !spansZero(box._fullLayout[key]));
    fill(note, cut.map(({ name }) => `The ${name} axis does not start at 0. `));
  };
  frame.redraw = async () => {
    if (!box.classList.contains("js-plotly-plot")) return;
    reset.hidden = true;
    await (await loading).react(box, ...figure());
    mark();
  };
  box.redraw = frame.redraw;
  const paint = async () => {
    waiting.delete(box);
    observer.disconnect();
    try {
      const plotly = await (loading ??= load());
      await plotly.newPlot(box, ...figure());
      mark();
      box.on("plotly_relayout", (change) => {
        const keys = Object.keys(change); // a change of size has neither
        if (keys.some((key) => key.includes(".range"))) reset.hidden = false;
        else if (keys.some((key) => key.includes("autorange"))) reset.hidden = true;
        mark();
      });
      new ResizeObserver(() => box.isConnected && plotly.Plots.resize(box)).observe(box);
    } catch (error) {
      if (!(error instanceof ChartError)) throw error;
      fill(box, h("p", { class: "missing" }, error.message));
      box.style.setProperty("height", "auto");
      box.setAttribute("role", "note");
    }
  };
  const sight = (entries) => entries.some((entry) => entry.isIntersecting) && paint();
  const observer = new IntersectionObserver(sight, { rootMargin: "200px" });
  observer.observe(box);
  waiting.set(box, paint);
  return frame;
}

/** A chart of a document, {title, data, layout, height, legend}. Its texts are plain, and "--name" is a color of the style sheet. */
export function plot({ title, data, layout, height, legend: named = [] }) {
  const draw = () => ({ data: data.map(traced), layout: drawn({ showlegend: false, ...layout, ...labelled(layout) }) });
  const colors = named.map(([label, color]) => ({ label, color }));
  return [named.length ? legend(colors) : null, chart({ title, draw, height })];
}

// A trace with its texts, or with the units of its values, for readers who point at it.
function traced({ units = null, ...trace }) {
  if (!units) return drawn({ hoverinfo: trace.hovertext?.length ? "text" : "skip", ...trace });
  const [x, y] = units.map(chartText);
  return { ...drawn(trace), hovertemplate: `%{y:.4~g} ${y}<extra>%{x:.4~g} ${x}</extra>` };
}

// A value of a chart with its colors, and with texts that Plotly does not read as markup.
function drawn(value) {
  if (Array.isArray(value)) return value.map(drawn);
  if (typeof value === "object" && value) return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, drawn(item)]));
  if (typeof value !== "string") return value;
  const [, name, alpha = ""] = /^--([\w-]+)(?:\/(\w\w))?$/.exec(value) ?? [];
  return name ? `${color(name)}${alpha}` : value.split("\n").map(chartText).join("<br>");
}

// The axes with labels that fit the page.
function labelled(layout) {
  const narrow = innerWidth < 700;
  const axes = Object.entries(layout).filter(([key, { names, most }]) => AXIS.test(key) && (names || most));
  return Object.fromEntries(
    axes.map(([key, { names, most, ...settings }]) => {
      const every = Math.ceil(settings.tickvals.length / (narrow ? 4 : (most ?? Infinity))) || 1;
      const kept = (values) => (most ? values.filter((_, i) => i % every === 0) : values);
      const ticktext = kept(settings.ticktext).map((text) => (names ? wrapped(text, names, narrow) : text));
      return [key, { ...settings, tickvals: kept(settings.tickvals), ticktext }];
    }),
  );
}

// A name in several lines. A long one loses its middle, because names differ at their ends.
function wrapped(name, lines, narrow) {
  const width = lines > 1 ? (narrow ? 14 : 24) : narrow ? 18 : 44;
  const room = lines * width;
  const text = name.length > room ? `${name.slice(0, room / 2)}…${name.slice(-room / 2 + 1)}` : name;
  if (lines === 1) return text;
  return (text.match(new RegExp(`[^\\n]{1,${width}}(?:\\s|$)|[^\\n]{1,${width}}`, "gu")) ?? [text]).map((line) => line.trimEnd()).join("\n");
}

function spansZero({ type, range: [low, high] }) {
  return type !== "linear" || (Math.min(low, high) <= 0 && Math.max(low, high) >= 0);
}

/** Draw every chart in the current theme, in sight or not. */
export async function drawAll() {
  const drawn = [...document.querySelectorAll(".js-plotly-plot")];
  const others = [...waiting].map(([box, paint]) => (box.isConnected ? paint() : waiting.delete(box)));
  await Promise.all([...others, ...drawn.map((box) => box.redraw())]);
}

/** A text for Plotly, which would read "<" as the start of markup. */
export function chartText(text) {
  return visible(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

/** A color of the style sheet. */
export function ink(name) {
  return color(name);
}

class ChartError extends Error {}

const AXES = [
  { key: "xaxis", name: "horizontal" },
  { key: "yaxis", name: "vertical" },
];
const AXIS = /^[xy]axis\d*$/;
const CONFIG = { displaylogo: false, displayModeBar: false, responsive: false, showSendToCloud: false };

function themed() {
  const font = getComputedStyle(document.body).fontFamily;
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: font, size: 12, color: color("ink-soft") },
    hoverlabel: {
      bgcolor: color("panel"),
      bordercolor: color("line-strong"),
      font: { family: font, size: 12, color: color("ink") },
    },
    margin: { l: 56, r: 12, t: 8, b: 40 },
    legend: { orientation: "h", y: -0.22, x: 0, font: { size: 11 } },
    bargap: 0.25,
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", // a finger on a chart scrolls the page
  };
}

function axis({ measured, ...settings } = {}) {
  const base = {
    gridcolor: color("line"),
    zerolinecolor: color("line"),
    linecolor: color("line-strong"),
    automargin: true,
    fixedrange: false,
  };
  return {
    ...base,
    ...settings,
    title: settings.title ? { text: settings.title, standoff: 8, font: { size: 11 } } : undefined,
  };
}

// A self-contained file contains Plotly in compressed form. A server has it next to the modules.
async function load() {
  await parsed();
  const packed = document.getElementById("plotly");
  if (packed !== null) {
    const data = unpack(packed.textContent.trim()).slice(0, Number(packed.dataset.bytes));
    const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream("gzip"));
    await run({ text: await new Response(stream).text() });
  } else if (document.getElementById("document") !== null) {
    throw new ChartError(
      "This file has no charts, because it was made without Plotly (the extra “view”). The tables have every figure.",
    );
  } else {
    await run({ address: "static/plotly.min.js" });
  }
  if (!globalThis.Plotly) throw new ChartError("This page has no charts, because Plotly does not run in this browser.");
  return globalThis.Plotly;
}

// The digits of Python's base64.b85encode, with a comma instead of "<". Five of them are four bytes.
const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";

function unpack(text) {
  const value = new Uint8Array(128);
  for (let i = 0; i < DIGITS.length; i += 1) value[DIGITS.charCodeAt(i)] = i;
  const bytes = new DataView(new ArrayBuffer((text.length / 5) * 4));
  for (let at = 0, to = 0; at < text.length; at += 5, to += 4) {
    let number = 0;
    for (let i = at; i < at + 5; i += 1) number = number * 85 + value[text.charCodeAt(i)];
    bytes.setUint32(to, number);
  }
  return bytes.buffer;
}

// The modules of a self-contained file start before the browser has read the rest of it.
function parsed() {
  if (document.readyState !== "loading") return null;
  return new Promise((resolve) => document.addEventListener("DOMContentLoaded", resolve, { once: true }));
}

function run({ text, address }) {
  const script = document.createElement("script");
  script.nonce = document.querySelector("script[nonce]")?.nonce ?? "";
  return new Promise((resolve, reject) => {
    if (address) {
      script.src = address;
      script.onload = resolve;
      script.onerror = () =>
        reject(new ChartError("Charts are left out: Plotly is not installed. It comes with the extra view."));
    } else {
      script.textContent = text;
    }
    document.head.append(script);
    if (!address) resolve();
  });
}
