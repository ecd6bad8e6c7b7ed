// Elements, built one by one. Names in a trace come from strangers: they become text nodes, never markup.

const SVG = "http://www.w3.org/2000/svg";

// Control and format characters, surrogates, private use, unassigned, line separators: shown as escapes, as on the console.
const UNSAFE = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;

/** Text that shows as itself: nothing in it breaks a line, reverses the writing or hides. */
export function visible(text) {
  return String(text).replace(UNSAFE, (char) => {
    const code = char.codePointAt(0);
    if (code <= 0xff) return `\\x${code.toString(16).padStart(2, "0")}`;
    return code <= 0xffff ? `\\u${code.toString(16).padStart(4, "0")}` : `\\U${code.toString(16).padStart(8, "0")}`;
  });
}

/**
 * An element.
 *
 * `properties`: attributes by name; `on: {event: listener}`; `style: {property: value}`; what is null or false is left
 * out. Children are nodes, strings, numbers, lists of them; null and false are left out.
 */
export function h(tag, properties = {}, ...children) {
  return build(document.createElement(tag), properties, children);
}

/** An SVG element, as `h`. */
export function svg(tag, properties = {}, ...children) {
  return build(document.createElementNS(SVG, tag), properties, children);
}

/** Replace what an element holds. */
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
