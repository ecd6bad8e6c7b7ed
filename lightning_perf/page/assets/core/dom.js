// Functions that create elements. Names in a trace are not trusted: they become text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";

// Control and format characters, surrogates, private use, unassigned, line separators: shown as escapes, as on the console.
const UNSAFE = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;

/** Make text safe to show: nothing in it breaks a line, reverses the writing direction or is hidden. */
export function visible(text) {
  return String(text).replace(UNSAFE, (char) => {
    const code = char.codePointAt(0);
    if (code <= 0xff) return `\\x${code.toString(16).padStart(2, "0")}`;
    return code <= 0xffff ? `\\u${code.toString(16).padStart(4, "0")}` : `\\U${code.toString(16).padStart(8, "0")}`;
  });
}

/**
 * Create an element.
 *
 * `properties`: attributes by name, `on: {event: listener}` and `style: {property: value}`. Children are nodes, strings,
 * numbers, or lists of them. Properties and children that are null or false are left out.
 */
export function h(tag, properties = {}, ...children) {
  return build(document.createElement(tag), properties, children);
}

/** Create an SVG element, like `h`. */
export function svg(tag, properties = {}, ...children) {
  return build(document.createElementNS(SVG, tag), properties, children);
}

/** Replace the content of an element. */
export function fill(element, ...children) {
  element.replaceChildren(...nodes(children));
  return element;
}

/** A sentence in which `code` between backticks is set as code. */
export function prose(text) {
  return text.split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part));
}

function build(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "style") for (const [key, item] of Object.entries(value)) element.style.setProperty(key, item);
    else element.setAttribute(name, value === true ? "" : visible(value));
  }
  element.append(...nodes(children));
  return element;
}

function nodes(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(visible(child))));
}
