// Draws a live view of any result from the JSON that perfnb.draw.as_json creates from its document.
import { codeBlock, figure, h, linkTo, notesSection, pressedOne, saveButton, titled } from "./dom.js";
import { grouped } from "./format.js";
import { widgetOf } from "./notebook.js";
import { bars, effects, heat, scatter, series, strip, valueDots } from "./plots.js";
import { tableSection } from "./table.js";
import { tabs } from "./tabs.js";

// By kind, the function that draws a picture from {data, section, model, reveal, has}. It returns an element, or
// {element, reveal(name), shown()}.
export const pictures = {};
// By lever, the content that a card shows in place of its advice; see findings/js/try.js.
export const cardTools = { advice: null };

function verdictBox({ state, sentence, why, next, code, confidence }, more) {
  if (!sentence) return null;
  const line = (word, said) => said && h("div", {}, h("dt", {}, word), h("dd", {}, said));
  return h("section", { class: `pf-verdict pf-${state}`, "aria-label": "Verdict" },
    h("p", { class: "pf-says" }, sentence, confidence && h("span", { class: "pf-sure" }, `${confidence} confidence`)),
    h("dl", {}, line("Why", why), line("Next", next)), code && codeBlock(code), more);
}

const figureEntry = ({ label, unit, interval, words, basis, samples }, place) => h("div", { class: place === 0 ? "pf-main" : "" },
  h("dt", {}, label), h("dd", {}, h("b", {}, figure(words)), place === 0 && valueDots(samples, unit, interval), basis && h("small", {}, basis)));

// Whether the section with this key has such a row. Sections other than tables are asked by time.
function isThere({ table, has }, key, name) {
  const { type, names, rows } = table(key) ?? {};
  return type === "table" ? (names ?? rows.map(([first]) => first)).includes(name) : has(key);
}

function cards(section, context) {
  if (!section.cards.length) return null;
  const made = section.cards.map((card, place) => {
    const links = card.links.map(({ key, name, words }) => (isThere(context, key, name)
      ? linkTo(words || name, `Show ${words || name}`, () => context.reveal(key, name))
      : h("span", { class: "pf-quiet pf-name" }, words || name)));
    const advice = [card.advice && h("p", {}, h("b", {}, "Try "), card.advice), card.code && codeBlock(card.code)];
    const trial = card.trial && [h("p", { class: "pf-quiet" }, card.trial[0]), codeBlock(card.trial[1])];
    const cure = h("div", {}, advice, trial);
    const element = h("li", { class: "pf-finding", tabindex: "-1" },
      h("div", { class: "pf-finding-head" },
        h("h3", {}, section.cards.length > 1 && h("span", { class: "pf-quiet" }, `${place + 1}`), card.title),
        h("span", { class: "pf-bound" }, card.bound),
        card.confidence && h("span", { class: "pf-sure", title: card.why }, `${card.confidence} confidence`)),
      card.share != null && h("div", { class: "pf-saves", "aria-hidden": "true" }, h("i", { style: `width:${Math.min(100, 100 * card.share)}%` })),
      card.evidence && h("p", {}, card.evidence), links.length > 0 && h("p", { class: "pf-links" }, links), cure,
      card.why && h("p", { class: "pf-quiet" }, h("b", {}, `${card.confidence} confidence `), card.why),
      card.caveat && h("p", { class: "pf-quiet" }, h("b", {}, "Caveat "), card.caveat));
    if (card.lever) cardTools.advice?.({ card, cure, element, advice, trial, model: context.model });
    return element;
  });
  const reveal = (name) => {
    const chosen = made[section.cards.findIndex(({ title }) => title === name)] ?? made[0];
    chosen.scrollIntoView({ block: "nearest" });
    chosen.focus({ preventScroll: true });
  };
  return { element: h("ol", { class: "pf-findings" }, made), reveal, size: grouped(made.length) };
}

// Alternatives that are shown one at a time.
function choice(section, context) {
  const holder = h("div");
  const names = Object.keys(section.options);
  if (!names.length) return null;
  const show = (name) => holder.replaceChildren(...section.options[name].map((part) => sectionView(part, context)?.element).filter(Boolean));
  show(names[0]);
  return [names.length > 1 && h("div", { class: "pf-toolbar" }, h("span", { class: "pf-buttons", role: "group", "aria-label": section.title }, pressedOne(names.map((name) => [name, () => show(name)])))), holder];
}

const DRAWN = {
  bars, effects, table: tableSection, series, strip, scatter, heat, choice, cards, code: ({ text }) => text && codeBlock(text),
  picture: (section, context) => (section.still ? stillPicture(section) : pictures[section.kind]?.({ ...context, section, data: section.data })),
};
const OWN_TITLES = ["table", "picture"];

// The static form of a picture without a script. Names in it are escaped.
function stillPicture({ title, still }) {
  const { body } = new DOMParser().parseFromString(still, "text/html");
  return h("div", {}, title && h("h3", { class: "pf-section" }, title), h("div", { class: "pf-still" }, [...body.childNodes]));
}

// {element, reveal, shown, size} of a section, or nothing if there is nothing to show.
function sectionView(section, context) {
  const made = DRAWN[section.type](section, context);
  if (!made) return null;
  const { element, ...more } = made.element ? made : { element: made };
  if (section.key && more.reveal) context.sections.set(section.key, more.reveal);
  const title = !OWN_TITLES.includes(section.type) && section.title && h("h3", { class: "pf-section" }, section.title);
  return { ...more, element: h("section", { class: `pf-part pf-part-${section.type}`, "aria-label": section.title || null }, title, element) };
}

function headline(data) {
  return [
    data.figures.length > 0 && h("dl", { class: "pf-facts" }, data.figures.map(figureEntry)),
    data.facts.length > 0 && h("p", { class: "pf-quiet pf-more-facts" }, data.facts.join(" · "))];
}

// A tab of a document, with its title and number of rows.
function tabEntry(tab, context) {
  const parts = tab.sections.map((section) => sectionView(section, context)).filter(Boolean);
  const element = h("div", { class: "pf-view" }, verdictBox(tab.verdict), headline(tab), parts.map((part) => part.element), notesSection(tab.notes));
  if (!parts.length && !tab.verdict.sentence && !tab.figures.length) return null;
  return { key: tab.kind, title: tab.kind[0].toUpperCase() + tab.kind.slice(1), size: parts.find(({ size }) => size)?.size, element, shown: () => parts.forEach((part) => part.shown?.()) };
}

export function documentView(data, model) {
  const sections = new Map();
  const tabOf = new Map(data.tabs.flatMap((tab) => tab.sections.map((section) => [section.key, tab.kind])));
  const memory = `perfnb ${location.pathname} ${data.id}`;
  let views = null;
  const reveal = (key, name) => {
    if (tabOf.has(key)) views?.show(tabOf.get(key));
    sections.get(key)?.(name);
  };
  const all = [...data.sections, ...data.tabs.flatMap((tab) => tab.sections)];
  const keys = new Set(all.map(({ key }) => key).filter(Boolean));
  const context = { model, sections, reveal, has: (key) => keys.has(key), table: (key) => all.find((section) => section.key === key), document: data };
  const own = data.sections.map((section) => sectionView(section, context)).filter(Boolean);
  requestAnimationFrame(() => own.forEach((part) => part.shown?.()));
  const entries = data.tabs.map((tab) => tabEntry(tab, context)).filter(Boolean);
  if (entries.length) views = tabs(`Parts of the ${data.kind}`, entries, memory);
  const { selects } = data.verdict;
  const more = keys.has(selects) && h("button", { type: "button", class: "pf-link pf-more", click: () => reveal(selects) }, `Show the ${tabOf.get(selects) ?? "rows"}`);
  return h("article", { class: "perfnb", "aria-label": `${data.kind} ${data.subject}`.trim() },
    h("header", {}, titled(data.subject || data.kind, [data.subject && data.kind, data.device].filter(Boolean).join(" · ")), verdictBox(data.verdict, more), headline(data)),
    own.map((part) => part.element), views && [views.list, views.panels], notesSection(data.notes), pageButton(data, model));
}

// Saves a live view as a separate page, using the content of the widget and its static twin; see perfnb.draw.live.
function pageButton(data, model) {
  if (!data.page) return null;
  const encoded = (bytes) => btoa(Array.from(new Uint8Array(bytes), (byte) => String.fromCharCode(byte)).join(""));
  const page = async () => {
    const { page: [template, digest, start], ...shown } = data;
    const script = model.get("_esm").replace(/export default [^;]*;\s*$/, "") + start;
    const json = JSON.stringify({ ...shown, id: "page" }).replace(/[<>&\u2028\u2029]/g, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);
    const bytes = model.get("timeline");
    const parts = { css: model.get("_css"), data: json, script, twin: document.querySelector(`.perfnb-static-${CSS.escape(data.id)}`)?.innerHTML ?? "",
      timeline: bytes ? encoded(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength)) : "" };
    const hash = encoded(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(script)));
    return template.replace(digest, hash).replace(/\{\{(css|data|script|twin|timeline)\}\}/g, (_, name) => parts[name]);
  };
  return h("p", { class: "pf-tools" }, saveButton(page, "perfnb.html", "Save this view as a page of its own", "Save as a page", "text/html"));
}

export const documentWidget = widgetOf(documentView);
