// Buttons that copy a line or a link.

import { fill, h } from "../core/dom.js";

const SHOWN_MS = 1500;

/** A button that copies a text. `text` may be a function that returns it. */
export function copyButton(text, { name = "Copy this line", shown = "Copy" } = {}) {
  const button = h("button", { type: "button", class: "copy", "aria-label": name, title: name }, shown);
  button.addEventListener("click", async (event) => {
    event.stopPropagation();
    const done = await copy(typeof text === "function" ? text() : text);
    fill(button, done ? "Copied" : "Not allowed");
    setTimeout(() => fill(button, shown), SHOWN_MS);
  });
  return button;
}

/** A line of code with a button that copies it. */
export function codeLine(text) {
  return h("span", { class: "code-line" }, h("code", {}, text), copyButton(text));
}

// Browsers have no clipboard for scripts on addresses without HTTPS, other than this machine's. They still copy a selection.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = h("textarea", { class: "unseen", readonly: true, "aria-hidden": "true" });
    field.value = text;
    const focused = document.activeElement;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    focused?.focus({ preventScroll: true });
    return done;
  }
}
