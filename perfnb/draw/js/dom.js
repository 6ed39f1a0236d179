// No line break between a number and its unit or inside an interval, as in perfnb.draw.escape.
import { NOT_MEASURED, UNKNOWN } from "./format.js";

const UNITS = "(?:(?:%|×|[µm]?s|[kMGTPE]?B|[KMGTPE]iB|[kMGTPE]?FLOP|W|J|°C|MHz|samples|steps)(?:/\\w+)?)(?![\\w%])";
const INSIDE = new RegExp(`(?<=\\d) (?=${UNITS})|(?<=\\d,) (?=[−-]?\\d[\\d.,]*\\])`, "g");
const unbroken = (text) => text.replace(INSIDE, "\u00a0");

// Elements are only created here. Names reach the page as text nodes and attributes, never as markup; null and false are
// left out.
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

// h() for SVG.
export const drawn = (tag, props, ...children) => filled(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children.flat(Infinity));

// The title of a view: what it shows, and the device or kind.
export const titled = (name, about) => h("h2", { class: "pf-title" }, h("b", {}, name), h("span", { class: "pf-quiet" }, about));

// An entry of a list of facts: a word, a figure, and more about it.
export const fact = (word, value, more) => h("div", {}, h("dt", {}, word), h("dd", {}, h("b", {}, value), more && h("small", {}, more)));

// More than a few notes are folded.
const NOTES_OPEN = 2;
export const notesSection = (notes) => notes.length > 0 && h("section", { class: "pf-notes" }, h("details", { open: notes.length <= NOTES_OPEN },
  h("summary", {}, `Notes (${notes.length})`), h("ul", {}, notes.map((note) => h("li", {}, note)))));

// Facts as words and values.
export const factRows = (pairs) => h("dl", {}, pairs.map(([word, value]) => value != null && h("div", {}, h("dt", {}, word), h("dd", {}, value))));

// A name that leads somewhere.
export const linkTo = (words, title, click) => h("button", { type: "button", class: "pf-link pf-name", title, click }, words);
export const closeButton = (click) => h("button", { type: "button", class: "pf-close", "aria-label": "Close details", title: "Close", click }, "×");

// Buttons of which one is pressed: `choices` are pairs of its word and what a press does.
export function pressedOne(choices, pressed = 0) {
  const buttons = choices.map(([word, press, title], place) => h("button", { type: "button", title, "aria-pressed": String(place === pressed), click: () => {
    buttons.forEach((button, other) => button.setAttribute("aria-pressed", String(other === place)));
    press();
  } }, word));
  return buttons;
}

export const holdsFocus = (node) => node.contains(node.getRootNode().activeElement ?? null);

// What keys do while an element has the focus; one whose action returns false stays the page's.
export function onKeys(element, actions) {
  element.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || !Object.hasOwn(actions, event.key)) return;
    if (actions[event.key](event) !== false) event.preventDefault();
  });
}

export const searchInput = (words) => h("input", { type: "search", placeholder: words, "aria-label": words, spellcheck: "false", autocomplete: "off" });

// A quiet button that copies what `text()` returns.
export function copyButton(text, title, word = "copy") {
  const button = h("button", { type: "button", class: "pf-copy", title, "aria-label": title, click: async () => {
    const copied = await navigator.clipboard?.writeText(text()).then(() => true, () => false);
    button.textContent = copied ? "copied" : "cannot copy here";
    setTimeout(() => { button.textContent = word; }, 1500);
  } }, word);
  return button;
}

// A quiet button that saves what `text()` returns, or will, as a file.
export function saveButton(text, name, title, word, type = "text/csv") {
  return h("button", { type: "button", class: "pf-copy", title, "aria-label": title, click: async () => {
    const link = h("a", { href: URL.createObjectURL(new Blob([await text()], { type })), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  } }, word);
}

export const codeBlock = (text) => h("div", { class: "pf-code-block" }, h("pre", { class: "pf-code" }, h("code", {}, text)), copyButton(() => text, "Copy the code"));

// The head of a column; an empty one is not a header cell.
export const columnHead = (word, text) => (word ? h("th", { scope: "col", class: text ? "pf-text" : null }, word) : h("td"));

// "12.3 ms" with its unit in a quieter colour; "n/a" gives the reason on hover.
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
