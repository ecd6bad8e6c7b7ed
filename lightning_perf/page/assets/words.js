// What categories, phases and the like are called: the words of lightning_perf/report/words.py, kept in words.json.

let words = {};

/** Take the words; once, before anything is shown. */
export function loadWords(data) {
  words = data;
}

/** The label of a name in a table of words ("categories", "phases", …); the name itself where there is none. */
export function label(table, name) {
  return words[table]?.[name] ?? name;
}

/** The place of a name in a table of words; names that are not in it come last. */
export function place(table, name) {
  const found = Object.keys(words[table] ?? {}).indexOf(name);
  return found < 0 ? Infinity : found;
}

/** What an arithmetic is called: `FP16`, but `integer`. */
export function arithmeticLabel(name) {
  return /^[ftb]/.test(name) ? name.toUpperCase() : name;
}

/** What figures are for: each step, or a recording that marks none. */
export function per(rank) {
  return rank.breakdown.marked ? "a step" : "in the recording";
}
