// Definitions of figures, one click away from each figure. The texts come from docs/definitions.md by definitions.json.

import { fill, h, prose } from "../core/dom.js";

let definitions = {};

/** Set the texts; call it once, before the first view. */
export function loadDefinitions(data) {
  definitions = data;
}

/** A label that opens its definition, or the plain label if it has no definition. */
export function term(label, key) {
  if (!(key in definitions)) return label;
  return h("button", { type: "button", class: "term", "aria-haspopup": "dialog", on: { click: opener(key) } }, label);
}

/** A small button that opens a definition, for labels that have another function. */
export function hint(label, key) {
  if (!(key in definitions)) return null;
  const properties = {
    type: "button",
    class: "hint",
    "aria-haspopup": "dialog",
    "aria-label": `Definition of “${label}”`,
  };
  return h("button", { ...properties, on: { click: opener(key) } }, "?");
}

function opener(key) {
  return (event) => {
    event.stopPropagation();
    open(definitions[key], event.currentTarget);
  };
}

function open(definition, button) {
  const panel = document.getElementById("definition") ?? document.body.appendChild(build());
  fill(
    panel,
    h("h2", { id: "definition-title" }, definition.title),
    definition.text.map((paragraph) => h("p", {}, prose(paragraph))),
    h("p", { class: "from" }, `docs/definitions.md · ${definition.section}`),
    h(
      "button",
      { type: "button", class: "close", "aria-label": "Close", on: { click: () => panel.hidePopover() } },
      "×",
    ),
  );
  panel.showPopover({ source: button });
  place(panel, button);
  panel.focus();
  const back = (event) => {
    if (event.newState !== "closed") return;
    panel.removeEventListener("toggle", back);
    if (panel.contains(document.activeElement) || document.activeElement === document.body) button.focus();
  };
  panel.addEventListener("toggle", back);
}

function build() {
  return h("div", {
    id: "definition",
    popover: "auto",
    role: "dialog",
    "aria-labelledby": "definition-title",
    tabindex: "-1",
  });
}

// Below its button, or above it if there is more room. The style sheet puts it at the lower edge of a narrow page.
function place(panel, button) {
  const anchor = button.getBoundingClientRect();
  const left = Math.max(8, Math.min(anchor.left, innerWidth - panel.offsetWidth - 8));
  const below = anchor.bottom + 6;
  const fits = below + panel.offsetHeight < innerHeight - 8;
  const top = fits ? below : Math.max(8, anchor.top - panel.offsetHeight - 6);
  panel.style.setProperty("--left", `${left}px`);
  panel.style.setProperty("--top", `${top}px`);
}
