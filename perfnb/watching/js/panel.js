// The live panel of a watch. It receives readings and never asks for anything.
import { h, titled } from "../../draw/js/dom.js";
import { clock } from "../../draw/js/format.js";
import { settle } from "../../draw/js/notebook.js";
import { watchBoard, watchTable, watchWords, wordLists } from "./board.js";
import { put, write } from "./chart.js";
import { watchStore } from "./store.js";

const stores = new Map();

// One history per widget, so that a second view, or one opened later, shows all of it. Each caller gets its own object
// for the model, so the history is found by the id in the data.
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

function watchPanel(store) {
  const root = h("article", { class: "perfnb pf-watch", "aria-label": "Watch of the machine" });
  let [board, told] = [null, null];
  const build = () => {
    board?.close();
    told = null;
    board = watchBoard(store, { bands: store.marked, leastSpan: 4 * store.data.interval_s });
    const word = h("b", { role: "status" });
    const elapsed = h("b", { class: "pf-watch-elapsed" });
    const pause = h("button", { type: "button", click: () => board.pause(!board.paused()) });
    const reset = h("button", { type: "button", click: board.follow }, store.running ? "Follow" : "Reset zoom");
    const said = h("div", { class: "pf-watch-said" });
    const header = h("header", { class: "pf-watch-header" },
      titled("The machine", "watch"), h("p", {}, h("i", { class: "pf-watch-lamp", "aria-hidden": "true" }), word, elapsed), h("div", { class: "pf-buttons" }, pause, reset));
    board.drawn = () => {
      const state = !store.running ? "stopped" : board.paused() ? "paused" : "watching";
      put(root, { "data-state": state });
      write(word, state);
      const { first, end } = board.time();
      write(elapsed, clock(Math.max(0, end - first)));
      pause.hidden = !store.running;
      write(pause, board.paused() ? "Resume" : "Pause");
      pause.title = board.paused() ? "Readings continued; show all of them" : "Freeze the view; readings continue";
      reset.disabled = !board.zoomed();
      const words = watchWords(store);
      if (JSON.stringify(words) !== told) said.replaceChildren(...wordLists(words));
      told = JSON.stringify(words);
    };
    root.replaceChildren(header, board.line, board.element, ...(store.running ? [] : [watchTable(store.data)]), said);
    board.draw();
  };
  build();
  const leave = store.listen((whole) => (whole ? build() : board.paused() || board.draw()));
  return { root, leave: () => (leave(), board.close()) };
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
