// Tables as CSV files for a spreadsheet.

// A spreadsheet would run a cell that starts with one of these as a formula (OWASP, "CSV Injection"). Some skip spaces
// before it. Names in a trace are not trusted.
const FORMULA = /^\s*[=+\-@＝＋－＠]|^[\t\r\n]/;

/** Rows as RFC 4180 text: `columns` are {csv, value}, their figures unrounded. */
export function toCsv(columns, rows) {
  const lines = [columns.map((column) => cell(column.csv))];
  for (const row of rows) lines.push(columns.map((column) => cell(column.value(row))));
  return `${lines.map((line) => line.join(",")).join("\r\n")}\r\n`;
}

/** Offer a text to the reader as a file. */
export function download(name, text, type = "text/csv;charset=utf-8") {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = FORMULA.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
