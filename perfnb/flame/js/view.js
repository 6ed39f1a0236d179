// The flame graph: its order, colours, search and details.
import { boxFrame, ROW } from "../../draw/js/canvas.js";
import { canvasView } from "../../draw/js/canvas_view.js";
import { legendOf } from "../../draw/js/chart.js";
import { pictures } from "../../draw/js/document.js";
import { factRows, h, pressedOne } from "../../draw/js/dom.js";
import { byteSize, count, duration, grouped, share, significant } from "../../draw/js/format.js";
import { flameChange, flameColours } from "./colours.js";
import { flameMatches, flameRows, flameSandwich, flameStore, flameTree } from "./store.js";

const counted = (value, thing) => `${value} ${value === "1" ? thing : `${thing}s`}`;
const FLAME_WORDS = { ms: duration, bytes: byteSize, samples: (value) => counted(count(value), "sample"), none: () => "" };
const heaviestFirst = (a, b) => b.wide - a.wide;
const inTimeOrder = (a, b) => a.seen - b.seen;

function flameView(data) {
  const tree = flameTree(data);
  const words = FLAME_WORDS[data.unit];
  const byChoices = data.before ? [["change", "Change"]] : data.phases.some(Boolean) ? [["phase", "Phase"]] : [];
  if (byChoices.length) byChoices.push(["package", "Package"]);
  // `callers` is the number of boxes above a function whose callers and callees are shown.
  const state = {
    t0: 0, t1: 1, goal: null, scroll: 0, hovered: -1, selected: -1, by: byChoices[0]?.[0] ?? "package", order: heaviestFirst, sandwich: -1, callers: 0,
  };
  const nameOf = (i) => data.names[state.store.calls[i].name];
  const frame = boxFrame(state, (i) => {
    const change = state.by === "change" ? flameChange(state.store.calls[i], state.whole) : 0;
    return `${change > 0 ? "+ " : change < 0 ? "− " : ""}${nameOf(i)}`;
  });
  const [legend, title] = [h("div"), h("p", { class: "pf-quiet" })];
  const note = data.left ? h("p", { class: "pf-quiet" }, `${grouped(data.left)} narrower calls are not drawn; their time is in the calls around them.`) : "";

  // Shows all calls, or the callers and callees of a function.
  const sandwich = (f) => {
    let [root, rows, above] = [tree, flameRows(tree, state.order), []];
    title.hidden = f < 0;
    title.replaceChildren();
    if (f >= 0) {
      const { callers, callees, found } = flameSandwich(tree, f);
      [root, rows, above] = [callees, flameRows(callees, heaviestFirst), flameRows(callers, heaviestFirst).slice(1).reverse()];
      title.append("Callers of ", h("b", { class: "pf-name" }, data.names[f]), " above it, callees below; ",
        `${words(root.total)} in ${counted(grouped(found.length), "place")}. `,
        h("button", { type: "button", class: "pf-link", click: () => sandwich(-1) }, "Back to all calls"));
    }
    Object.assign(state, { sandwich: f, callers: above.flat().length, store: flameStore([...above, ...rows]), whole: root.wide || 1, selected: -1 });
    state.rows = state.store.rows;
    view.accept();
    view.whole(true);
    if (f >= 0) view.choose(state.callers, true);
  };
  const showAll = () => (state.sandwich >= 0 ? sandwich(-1) : view.whole());
  const paint = (by = state.by) => {
    state.by = by;
    if (state.theme) legend.replaceChildren(legendOf(flameColours(state, data, tree, frame.context), { "aria-label": "Colours" }));
  };

  const facts = (i) => {
    const { total, totalBefore, own, parent } = state.store.calls[i];
    const of = (value, all = tree.total) => `${words(value)} (${share(all ? value / all : null)})`.trim();
    const list = [["total", of(total)]];
    if (i >= state.callers) list.push(["itself", of(own)]);
    if (i >= state.callers && parent.parent) list.push(["of its caller", share(parent.total ? total / parent.total : null)]);
    if (!data.before) return list;
    const change = Math.abs(total - totalBefore);
    const sign = total < totalBefore ? "−" : "+";
    return [...list, ["baseline", of(totalBefore, tree.totalBefore)], ["change", `${sign}${words(change) || significant(change)}`]];
  };
  const inWords = (i, between) => facts(i).map(([word, value]) => `${word} ${value}`).join(between);
  const fileOf = (i) => data.places[state.store.calls[i].name];
  const details = () => {
    const { selected: i } = state;
    if (i < 0) return null;
    const f = state.store.calls[i].name;
    return [h("h3", { class: "pf-name" }, nameOf(i)), fileOf(i) && h("p", { class: "pf-quiet" }, fileOf(i)), factRows(facts(i)),
      h("span", { class: "pf-buttons" },
        h("button", { type: "button", click: () => view.zoomTo(i) }, "Zoom to it"),
        state.sandwich !== f && h("button", { type: "button", click: () => sandwich(f) }, "Callers and callees"),
        state.sandwich >= 0 && h("button", { type: "button", click: () => sandwich(-1) }, "Back to all calls"))];
  };

  let found = null;
  const search = (text) => {
    const lit = data.names.map((name, f) => `${name} ${data.places[f]}`.toLowerCase().includes(text.toLowerCase()));
    found = text ? flameMatches(tree, (f) => lit[f]) : null;
    return state.store.search(text && ((i) => lit[state.store.calls[i].name]));
  };
  const status = () => {
    if (!found) return "";
    const sum = found.reduce((total, call) => total + call.total, 0);
    return [counted(grouped(found.length), "call"), words(sum), share(tree.total ? sum / tree.total : null)].filter(Boolean).join(", ");
  };
  // The longest call one row above or below a call.
  const inRow = (step) => (i) => {
    const { rows, rowOf, start, duration: wide, at } = state.store;
    const row = rows[rows.indexOf(rowOf(i)) + step];
    return row ? at(row, start[i] + wide[i] / 2, 0.49 * wide[i]).event : -1;
  };

  const ordered = (order) => () => {
    state.order = order;
    sandwich(-1);
  };
  const orders = data.seen ? [["Heaviest first", ordered(heaviestFirst)], ["Time order", ordered(inTimeOrder)]] : [];
  const colours = byChoices.map(([key, word]) => [word, () => { paint(key); view.redraw(); }]);
  const element = h("div", { class: "pf-view pf-flame" });
  const view = canvasView(element, state, frame, {
    label: "Flame graph", words: "Search functions and files", hint: "Click a call for its time, its callers and its callees.",
    keys: [["C", "callers and callees"]], buttons: [pressedOne(orders), pressedOne(colours)], above: [legend, title, note], below: [],
    bounds: () => [0, state.whole], get least() { return 1e-7 * state.whole; }, margin: 0, lay: () => Math.max(1, state.rows.length) * ROW,
    recolour: paint, search, status, details, first: () => (state.store.total ? state.callers : -1), up: inRow(-1), down: inRow(1),
    spoken: (i) => `${nameOf(i)}, ${inWords(i, ", ")}`, clicked: (i) => i >= 0 && view.zoomTo(i),
    tip: ({ event: i }) => i >= 0 && [
      h("b", { class: "pf-name" }, nameOf(i)), fileOf(i) && h("div", { class: "pf-quiet" }, fileOf(i)), h("div", {}, inWords(i, " · ")),
    ],
    actions: { 0: showAll, Escape: showAll, c: () => state.selected >= 0 && sandwich(state.store.calls[state.selected].name) },
  });
  sandwich(-1);
  // Finds a function by the name that tables use for it.
  const reveal = (name) => {
    const f = data.names.findIndex((text) => text === name || text.startsWith(`${name}:`));
    if (f < 0) return;
    sandwich(f);
    element.scrollIntoView({ block: "nearest" });
    frame.canvas.focus({ preventScroll: true });
  };
  return { element, shown: view.shown, reveal };
}

pictures.flame = ({ data, section }) => {
  const view = flameView(data);
  return { ...view, element: h("div", {}, section.title && h("h3", { class: "pf-section" }, section.title), view.element) };
};
