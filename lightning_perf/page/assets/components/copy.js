// Buttons that copy a line or a link.

import { fill, h } from "../core/dom.js";

const SHOWN_MS = 1500;

/**
 * A button that copies a text. `text` may be a function that returns it.
 *
 * Without `shown` it has a sign of the style sheet, so that it adds nothing to a sentence that somebody copies.
 */
export function copyButton(text, { name = "Copy this line", shown = "" } = {}) {
  const kind = shown ? "copy" : "copy sign";
  const button = h("button", { type: "button", class: kind, "aria-label": name, title: name }, shown);
  button.addEventListener("click", async (event) => {
    event.stopPropagation();
    const done = await copy(typeof text === "function" ? text() : text);
    const answer = done ? "Copied" : "Your browser does not allow scripts to copy";
    button.classList.toggle("done", done);
    button.setAttribute("aria-label", answer);
    button.title = answer;
    if (shown) fill(button, done ? "Copied" : "Not allowed");
    setTimeout(() => {
      button.classList.remove("done");
      button.setAttribute("aria-label", name);
      button.title = name;
      fill(button, shown);
    }, SHOWN_MS);
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
