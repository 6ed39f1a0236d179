// The live panel of a watch. It only receives readings and never sends requests.
import { documentView } from "../../draw/js/document.js";
import { h, notesSection, titled } from "../../draw/js/dom.js";
import { clock, grouped } from "../../draw/js/format.js";
import { settle } from "../../draw/js/notebook.js";
import { watchBoard } from "./board.js";
import { put, write } from "./chart.js";
import { watchStore } from "./store.js";

const stores = new Map();

// Keep one history per widget, so that additional views show all of it, even if they are opened later. Each caller gets
// a different object for the model, so the history is found by the id in the data.
function initialize({ model }) {
  const store = watchStore(JSON.parse(model.get("data")));
  const { id } = store.data;
  stores.set(id, store);
  const take = () => {
    const chunk = model.get("chunk");
    if (chunk) store.take(JSON.parse(chunk));
  };
  take();
  model.on("change:chunk", take);
  model.on("change:data", () => store.load(JSON.parse(model.get("data"))));
  return () => stores.get(id) === store && stores.delete(id);
}

// Returns notes about missing sensors and other caveats, followed by explanations of the charts.
function watchNotes(store) {
  const left = store.marksLeftOut;
  const more = left ? [`${grouped(left)} earlier ${left === 1 ? "mark is" : "marks are"} not drawn.`] : [];
  const seen = store.data.charts.filter(({ lines, note }) => note && lines.some(({ device, column }) => store.devices.get(device)?.known.has(column)));
  return [...store.notes, ...more, ...seen.map(({ title, note }) => `${title}: ${note}.`)];
}

function watchPanel(store) {
  const root = h("div");
  let board = null;
  const build = () => {
    board?.close();
    board = null;
    if (!store.running) {
      root.replaceChildren(documentView(store.data));
      return;
    }
    let told = null;
    board = watchBoard(store, { bands: store.marked, leastSpan: 4 * store.data.interval_s });
    const word = h("b", { role: "status" });
    const elapsed = h("b", { class: "pf-watch-elapsed" });
    const pause = h("button", { type: "button", click: () => board.pause(!board.paused()) });
    const follow = h("button", { type: "button", click: board.follow }, "Follow");
    const notes = h("div");
    const panel = h("article", { class: "perfnb", "aria-label": "Watch of the machine" },
      h("header", { class: "pf-watch-header" }, titled("the machine", "watch"),
        h("p", {}, h("i", { class: "pf-watch-lamp", "aria-hidden": "true" }), word, elapsed), h("div", { class: "pf-buttons" }, pause, follow)),
      board.line, board.element, notes);
    board.drawn = () => {
      const state = board.paused() ? "paused" : "watching";
      put(panel, { "data-state": state });
      write(word, state);
      const { first, end } = board.time();
      write(elapsed, clock(Math.max(0, end - first)));
      write(pause, board.paused() ? "Resume" : "Pause");
      pause.title = board.paused() ? "Show all readings since the pause" : "Freeze the view while readings continue";
      follow.disabled = !board.zoomed();
      const words = watchNotes(store);
      if (words.join() !== told) notes.replaceChildren(...[notesSection(words)].filter(Boolean));
      told = words.join();
    };
    root.replaceChildren(panel);
    board.draw();
  };
  build();
  const leave = store.listen((whole) => (whole ? build() : board?.paused() || board?.draw()));
  return { root, leave: () => (leave(), board?.close()) };
}

function render({ model, el }) {
  const store = stores.get(JSON.parse(model.get("data")).id);
  const panel = watchPanel(store);
  const leave = settle(panel.root, store.data.id, el);
  return () => {
    leave();
    panel.leave();
  };
}

const watch = { initialize, render };
export default watch;
