// No line ends between a number and its unit, nor inside an interval; as perfnb.draw.escape has it.
const UNITS = "(?:(?:%|×|[µm]?s|[kMGTPE]?B|[KMGTPE]iB|[kMGTPE]?FLOP|W|J|°C|MHz|samples|steps)(?:/\\w+)?)(?![\\w%])";
const INSIDE = new RegExp(`(?<=\\d) (?=${UNITS})|(?<=\\d,) (?=[−-]?\\d[\\d.,]*\\])`, "g");
const unbroken = (text) => text.replace(INSIDE, "\u00a0");

// Elements are made here, and only here. Names reach the page as text nodes and attributes, never as markup.
function h(tag, props, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value == null || value === false) continue;
    if (typeof value === "function") node.addEventListener(key, value);
    else if (key === "style") node.style.cssText = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child != null).map((child) => (typeof child === "string" ? unbroken(child) : child)));
  return node;
}

// What a view is of, and what was made of it or on which device.
const titled = (name, about) => h("h2", { class: "pf-title" }, h("b", {}, name), h("span", { class: "pf-quiet" }, about));

// The head of a column; an empty one is no head.
const columnHead = (word, text) => (word ? h("th", { scope: "col", class: text ? "pf-text" : null }, word) : h("td"));

// "12.3 ms" with its unit set back; "n/a" says why on hover.
function figure(text) {
  if (text === UNKNOWN) return h("span", { class: "pf-unknown", title: NOT_MEASURED }, text);
  const gap = text.lastIndexOf(" ");
  return gap < 0 ? text : [text.slice(0, gap), h("span", { class: "pf-unit" }, `\u00a0${text.slice(gap + 1)}`)];
}

// `text` with every occurrence of `query` marked.
function marked(text, query) {
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

// A stacked bar: parts are [milliseconds, kind]; `full` fills it.
function stackedBar(parts, full) {
  const bar = h("span", { class: "pf-stack", "aria-hidden": "true" });
  for (const [ms, kind] of parts) {
    if (ms > 0 && full > 0) bar.append(h("i", { class: `pf-${kind}`, style: `width:${Math.min(100, (100 * ms) / full)}%` }));
  }
  return bar;
}

let idsGiven = 0;
const freshId = (stem) => `perfnb-${stem}-${Date.now().toString(36)}-${(idsGiven += 1)}`;

// Tabs after the ARIA pattern: one in the tab order, arrow keys move between them.
function tabs(label, entries) {
  const list = h("div", { role: "tablist", "aria-label": label, class: "pf-tabs" });
  const choose = (chosen) => entries.forEach((entry, i) => {
    entry.tab.setAttribute("aria-selected", String(i === chosen));
    entry.tab.tabIndex = i === chosen ? 0 : -1;
    entry.panel.hidden = i !== chosen;
    if (i === chosen) entry.shown?.();
  });
  entries.forEach((entry, i) => {
    const [tabId, panelId] = [freshId("tab"), freshId("panel")];
    entry.tab = h("button", { type: "button", role: "tab", id: tabId, "aria-controls": panelId, click: () => choose(i) },
      entry.word, h("span", { class: "pf-count" }, entry.size));
    entry.panel = h("div", { role: "tabpanel", id: panelId, "aria-labelledby": tabId }, entry.content);
    list.append(entry.tab);
  });
  list.addEventListener("keydown", (event) => {
    const now = entries.findIndex((entry) => entry.tab === event.target);
    const next = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: entries.length - 1 }[event.key];
    if (now < 0 || next == null) return;
    event.preventDefault();
    const to = (next + entries.length) % entries.length;
    choose(to);
    entries[to].tab.focus();
  });
  const show = (word) => choose(entries.findIndex((entry) => entry.word === word));
  choose(0);
  return { list, panels: entries.map((entry) => entry.panel), choose, show };
}
