// The labels of categories, phases and the like: those of the report's console renderer, kept in labels.json.

let labels = {};

/** Set the labels; call it once, before the first view. */
export function loadLabels(data) {
  labels = data;
}

/** The label of a name in a table of labels ("categories", "phases", …); the name itself where there is none. */
export function label(table, name) {
  return labels[table]?.[name] ?? name;
}

/** The place of a name in a table of labels; names that are not in it come last. */
export function place(table, name) {
  const found = Object.keys(labels[table] ?? {}).indexOf(name);
  return found < 0 ? Infinity : found;
}

/** What an arithmetic is called: `FP16`, but `integer`. */
export function arithmeticLabel(name) {
  return /^[ftb]/.test(name) ? name.toUpperCase() : name;
}

/** What figures are for: each step, or a recording that marks none. */
export function per(rank) {
  return rank.breakdown.marked ? "per step" : "in the recording";
}
