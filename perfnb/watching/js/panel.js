// The live panel of a watch. It only receives readings and never sends requests.
import { documentView } from "../../draw/js/document.js";
import { h, notesSection, titled } from "../../draw/js/dom.js";
import { clock } from "../../draw/js/format.js";
import { settle } from "../../draw/js/notebook.js";
import { watchBoard } from "./board.js";
import { write } from "./chart.js";
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
  const seen = store.data.charts.filter(({ lines, note }) => note && lines.some(({ device, column }) => store.has(device, column)));
  return [...store.notes, ...seen.map(({ title, note }) => `${title}: ${note}.`)];
}

function livePanel(store) {
  const board = watchBoard(store);
  let [said, visible] = [null, true];
  const word = h("b", { role: "status" });
  const elapsed = h("b", { class: "pf-watch-elapsed" });
  const pause = h("button", { type: "button", title: "Freeze the view while readings continue", click: () => board.pause(board.frozen == null) });
  const follow = h("button", { type: "button", click: board.follow }, "Follow");
  const notes = h("div");
  const element = h("article", { class: "perfnb", "aria-label": "Watch of the machine" },
    h("header", { class: "pf-watch-header" }, titled("the machine", "watch"),
      h("p", {}, word, elapsed), h("div", { class: "pf-buttons" }, pause, follow)),
    board.line, board.element, notes);
  board.drawn = () => {
    const paused = board.frozen != null;
    write(word, paused ? "paused" : "watching");
    const { first, end } = board.time();
    write(elapsed, clock(end - first));
    write(pause, paused ? "Resume" : "Pause");
    follow.disabled = !board.view;
    const words = watchNotes(store);
    if (words.join() !== said) notes.replaceChildren(notesSection(words) || "");
    said = words.join();
  };
  // New readings are not drawn while the panel is out of sight.
  new IntersectionObserver((entries) => {
    visible = entries.at(-1).isIntersecting;
    board.draw();
  }).observe(element);
  return { element, arrived: () => visible && board.frozen == null && board.draw() };
}

function render({ model, el }) {
  const store = stores.get(JSON.parse(model.get("data")).id);
  const root = h("div");
  let live = null;
  const build = () => {
    live = store.running ? livePanel(store) : null;
    root.replaceChildren(live ? live.element : documentView(store.data));
  };
  build();
  const ignore = store.listen((whole) => (whole ? build() : live.arrived()));
  const leave = settle(root, store.data.id, el);
  return () => {
    ignore();
    leave();
  };
}

const watch = { initialize, render };
export default watch;
