// The labels of categories, phases and the like. They equal those of the console report and are kept in labels.json.

let labels = {};

/** Set the labels; call it once, before the first view. */
export function loadLabels(data) {
  labels = data;
}

/** The label of a name in a table of labels ("categories", "phases", …), or the name itself if it has no label. */
export function label(table, name) {
  return labels[table]?.[name] ?? name;
}

/** The position of a name in a table of labels. Names without a label come last. */
export function place(table, name) {
  const found = Object.keys(labels[table] ?? {}).indexOf(name);
  return found < 0 ? Infinity : found;
}

/** The label of an arithmetic: `FP16`, but `integer`. */
export function arithmeticLabel(name) {
  return /^[ftb]/.test(name) ? name.toUpperCase() : name;
}

/** The unit of figures: "per step", or "in the recording" if it has no step marks. */
export function per(rank) {
  return rank.breakdown.marked ? "per step" : "in the recording";
}
