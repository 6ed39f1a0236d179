// Tabs that follow the ARIA pattern. Only one of them is in the tab order, and the arrow keys move between tabs.
import { freshId, h } from "./dom.js";

// The chosen tab is stored in the browser's session under `memory`, and is still selected after the page is reloaded.
export function tabs(label, entries, memory) {
  const list = h("div", { role: "tablist", "aria-label": label, class: "pf-tabs" });
  const choose = (chosen) => entries.forEach((entry, i) => {
    entry.tab.setAttribute("aria-selected", String(i === chosen));
    entry.tab.tabIndex = i === chosen ? 0 : -1;
    entry.panel.hidden = i !== chosen;
    if (i === chosen) entry.shown?.();
    if (i === chosen) kept((storage) => storage.setItem(memory, entry.key));
  });
  entries.forEach((entry, i) => {
    const [tabId, panelId] = [freshId("tab"), freshId("panel")];
    entry.tab = h("button", { type: "button", role: "tab", id: tabId, "aria-controls": panelId, click: () => choose(i) },
      entry.title, h("span", { class: "pf-count" }, entry.size));
    entry.panel = h("div", { role: "tabpanel", id: panelId, "aria-labelledby": tabId }, entry.element);
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
  choose(Math.max(0, entries.findIndex(({ key }) => key === kept((storage) => storage.getItem(memory)))));
  const show = (key) => choose(entries.findIndex((entry) => entry.key === key));
  return { list, panels: entries.map((entry) => entry.panel), show };
}

// If storage is not allowed, as in some frames, nothing is kept.
function kept(use) {
  try {
    return use(sessionStorage);
  } catch {
    return null;
  }
}
