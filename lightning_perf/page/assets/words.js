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

/** What an arithmetic is called: `FP16`, but `integer`. */
export function arithmeticLabel(name) {
  return /^[ftb]/.test(name) ? name.toUpperCase() : name;
}

/** What figures are for: each step, or a recording that marks none. */
export function per(rank) {
  return rank.breakdown.marked ? "a step" : "in the recording";
}
