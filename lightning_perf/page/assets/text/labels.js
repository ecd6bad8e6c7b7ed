// The labels of categories, phases and gaps, which come with the document.

let labels = {};

/** Set the labels of a document. */
export function loadLabels(data) {
  labels = data ?? {};
}

/** The label of a name in a table of labels ("categories", "phases", …), or the name itself if it has no label. */
export function label(table, name) {
  return labels[table]?.[name] ?? name;
}
