// Prevents line breaks between a number and its unit and inside an interval, as in perfnb.draw.escape.
import { NOT_MEASURED, UNKNOWN } from "./format.js";

const UNITS = "(?:(?:%|×|[µm]?s|[kMGTPE]?B|[KMGTPE]iB|[kMGTPE]?FLOP|W|J|°C|MHz|samples|steps)(?:/\\w+)?)(?![\\w%])";
const INSIDE = new RegExp(`(?<=\\d) (?=${UNITS})|(?<=\\d,) (?=[−-]?\\d[\\d.,]*\\])`, "g");
const unbroken = (text) => text.replace(INSIDE, "\u00a0");

// All elements are created by this function. Names become text nodes or attributes and can never be markup. Children
// that are null or false are left out.
function filled(node, props, children) {
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value == null || value === false) continue;
    if (typeof value === "function") node.addEventListener(key, value);
    else if (key === "style") node.style.cssText = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child != null && child !== false));
  return node;
}

export const h = (tag, props, ...children) => filled(document.createElement(tag), props, children.flat(Infinity).map((child) => (typeof child === "string" ? unbroken(child) : child)));

// The equivalent of h() for SVG.
export const drawn = (tag, props, ...children) => filled(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children.flat(Infinity));

// The title of a view: the name of its subject, and the device or the kind of result.
export const titled = (name, about) => h("h2", { class: "pf-title" }, h("b", {}, name), h("span", { class: "pf-quiet" }, about));

// If there are more than a few notes, they are collapsed.
const NOTES_OPEN = 2;
export const notesSection = (notes) => notes.length > 0 && h("section", { class: "pf-notes" }, h("details", { open: notes.length <= NOTES_OPEN },
  h("summary", {}, `Notes (${notes.length})`), h("ul", {}, notes.map((note) => h("li", {}, note)))));

// A list of facts, each of which is a word and a value.
export const factRows = (pairs) => h("dl", {}, pairs.map(([word, value]) => value != null && h("div", {}, h("dt", {}, word), h("dd", {}, value))));

// A name that acts as a link.
export const linkTo = (words, title, click) => h("button", { type: "button", class: "pf-link pf-name", title, click }, words);
export const closeButton = (click) => h("button", { type: "button", class: "pf-close", "aria-label": "Close details", title: "Close", click }, "×");

// Buttons, one of which is pressed. `choices` contains a label and an action for each button.
export function pressedOne(choices, pressed = 0) {
  const buttons = choices.map(([word, press, title], place) => h("button", { type: "button", title, "aria-pressed": String(place === pressed), click: () => {
    buttons.forEach((button, other) => button.setAttribute("aria-pressed", String(other === place)));
    press();
  } }, word));
  return buttons;
}

export const holdsFocus = (node) => node.contains(node.getRootNode().activeElement ?? null);

// Assigns actions to keys while an element has the focus. If an action returns false, the page handles the key.
export function onKeys(element, actions) {
  element.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || !Object.hasOwn(actions, event.key)) return;
    if (actions[event.key](event) !== false) event.preventDefault();
  });
}

export const searchInput = (words) => h("input", { type: "search", placeholder: words, "aria-label": words, spellcheck: "false", autocomplete: "off" });

// An unobtrusive button that copies the text returned by `text()`.
export function copyButton(text, title, word = "copy") {
  const button = h("button", { type: "button", class: "pf-copy", title, "aria-label": title, click: async () => {
    const copied = await navigator.clipboard?.writeText(text()).then(() => true, () => false);
    button.textContent = copied ? "copied" : "cannot copy here";
    setTimeout(() => { button.textContent = word; }, 1500);
  } }, word);
  return button;
}

// An unobtrusive button that saves the text returned by `text()`, which may be a promise, as a file.
export function saveButton(text, name, title, word, type = "text/csv") {
  return h("button", { type: "button", class: "pf-copy", title, "aria-label": title, click: async () => {
    const link = h("a", { href: URL.createObjectURL(new Blob([await text()], { type })), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  } }, word);
}

export const codeBlock = (text) => h("div", { class: "pf-code-block" }, h("pre", { class: "pf-code" }, h("code", {}, text)), copyButton(() => text, "Copy the code"));

// The head of a column. An empty head is not a header cell.
export const columnHead = (word, text) => (word ? h("th", { scope: "col", class: text ? "pf-text" : null }, word) : h("td"));

// "12.3 ms" with the unit in a less prominent colour. For "n/a", the reason is displayed on hover.
export function figure(text) {
  if (text === UNKNOWN) return h("span", { class: "pf-unknown", title: NOT_MEASURED }, text);
  const within = text.indexOf(" [");
  if (within > 0) return [figure(text.slice(0, within)), h("span", { class: "pf-quiet" }, text.slice(within))];
  const gap = text.lastIndexOf(" ");
  return gap < 0 ? text : [text.slice(0, gap), h("span", { class: "pf-unit" }, `\u00a0${text.slice(gap + 1)}`)];
}

// `text` with every occurrence of `query` marked.
export function marked(text, query) {
  if (!query) return text;
  const parts = [];
  const lower = text.toLowerCase();
  if (lower.length !== text.length) return text;
  let from = 0;
  for (let at = lower.indexOf(query); at >= 0; at = lower.indexOf(query, from)) {
    parts.push(text.slice(from, at), h("mark", {}, text.slice(at, at + query.length)));
    from = at + query.length;
  }
  return [...parts, text.slice(from)];
}

let idsGiven = 0;
export const freshId = (stem) => `perfnb-${stem}-${Date.now().toString(36)}-${(idsGiven += 1)}`;
