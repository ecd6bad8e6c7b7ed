// Times, bytes, FLOPs, rates and shares as text. The rules are those of lightning_perf/units.py, so that a figure reads
// the same here and on the console: three significant digits, and a dash for a missing value.

export const NOT_AVAILABLE = "–";
const MINUS = "−";

const TIMES = [
  [1, "ns"],
  [1e3, "µs"],
  [1e6, "ms"],
  [1e9, "s"],
];
const BINARY = [
  [1, "B"],
  [2 ** 10, "KiB"],
  [2 ** 20, "MiB"],
  [2 ** 30, "GiB"],
  [2 ** 40, "TiB"],
  [2 ** 50, "PiB"],
];

/** A duration, given in nanoseconds. */
export function duration(time_ns) {
  if (!Number.isFinite(time_ns)) return NOT_AVAILABLE;
  const seconds = Number(fixed(Math.abs(time_ns) / 1e9, 0));
  const sign = time_ns < 0 ? MINUS : "";
  if (seconds >= 3600) return `${sign}${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  if (seconds >= 60) return `${sign}${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return scaled(time_ns, TIMES);
}

/** An amount of memory, in powers of 1024. */
export function bytes(size_bytes) {
  return scaled(size_bytes, BINARY);
}

/** A number of things. A tiny mean never reads 0. */
export function count(number) {
  if (!Number.isFinite(number)) return NOT_AVAILABLE;
  if (number > 0 && number < 0.0005) return "<0.001";
  return Number.isInteger(number) || Math.abs(number) >= 999.5 ? grouped(number) : digits(number);
}

/** A number with its noun. */
export function countOf(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** A share, 0 to 1, as per cent. A positive share never reads 0, and a share below 1 never reads 100. */
export function share(part) {
  if (!Number.isFinite(part)) return NOT_AVAILABLE;
  if (part === 0 || part === 1) return `${part * 100} %`;
  const text = signed(fixed(100 * part, 1));
  if (text === "0.0" || text === `${MINUS}0.0`) return part > 0 ? "<0.1 %" : `>${MINUS}0.1 %`;
  return text === "100.0" && part < 1 ? ">99.9 %" : `${text} %`;
}

// Three significant digits without an exponent; all digits of the integer part.
function digits(value) {
  if (value === 0) return "0";
  let exponent = Math.floor(Math.log10(Math.abs(value)));
  const rounded = exponent <= 2 ? Number(fixed(Math.abs(value), 2 - exponent)) : Math.round(Math.abs(value));
  if (rounded >= 10 ** (exponent + 1)) exponent += 1;
  return signed(fixed(value, Math.max(0, Math.min(2 - exponent, 12))));
}

function signed(text) {
  return text.replace(/^-/, MINUS);
}

function scaled(value, units) {
  if (!Number.isFinite(value)) return NOT_AVAILABLE;
  const [sign, size] = [value < 0 ? MINUS : "", Math.abs(value)];
  for (let i = 0; i < units.length - 1; i += 1) {
    const [factor, unit] = units[i];
    const text = factor === 1 && Number.isInteger(size) ? fixed(size, 0) : digits(size / factor);
    if (Number(text) < units[i + 1][0] / factor) return `${sign}${text} ${unit}`.trim();
  }
  const [factor, unit] = units[units.length - 1];
  return `${sign}${digits(size / factor)} ${unit}`;
}

function grouped(value) {
  return signed(fixed(value, 0)).replace(/\B(?=(\d{3})+$)/g, ",");
}

// toFixed rounds a tie away from zero, and Python to even. Only a number with an exact 5 as its last digit can tie.
function fixed(value, places) {
  const text = value.toFixed(places);
  const exact = Math.abs(value).toFixed(Math.min(places + 30, 100));
  const tail = exact.slice(exact.length - 30);
  if (!/^50*$/.test(tail)) return text;
  const below = exact.slice(0, exact.length - 30).replace(/\.$/, "");
  const even = Number(below[below.length - 1]) % 2 === 0 ? below : Math.abs(value).toFixed(places);
  return value < 0 ? `-${even.replace(/^-/, "")}` : even.replace(/^-/, "");
}
