// The Timeline tab, which draws every traced event over time on a canvas.
import { h } from "../../draw/js/dom.js";
import { grouped } from "../../draw/js/format.js";
import { pictures } from "../../draw/js/document.js";
import { unpackTimeline } from "./store.js";
import { timelineView } from "./view.js";

const wholes = new WeakMap();

// All events of a long trace, which are requested from the kernel once per model. Without a kernel, there is no answer.
function wholeOf(model) {
  if (!wholes.has(model)) {
    wholes.set(model, new Promise((resolve) => {
      model.on?.("msg:custom", (content, buffers) => content?.timeline === "whole" && buffers?.[0] && resolve(buffers[0]));
      model.send?.({ timeline: "whole" });
    }));
  }
  return wholes.get(model);
}

function timelineTab(model, timeline, facts, showLayer) {
  const notice = h("p", { class: "pf-quiet pf-empty", role: "status" }, "Loading the timeline …");
  const element = h("div", { class: "pf-view pf-timeline" }, notice);
  let [view, wanted, begun] = [null, null, false];
  const put = async (bytes) => {
    const store = await unpackTimeline(bytes);
    if (view) return view.replace(store);
    view = timelineView(element, store, facts, showLayer);
    view.shown();
    return wanted != null && view.goToLayer(wanted);
  };
  const begin = async () => {
    begun = true;
    await put(model.get("timeline"));
    if (!timeline.whole) await put(await wholeOf(model));
  };
  const shown = () => {
    view?.shown();
    // If all events cannot be read, the coarser level remains.
    if (!begun) begin().catch((error) => { notice.textContent = `The timeline cannot be read: ${error.message}. The other tabs have the totals.`; });
  };
  const reveal = (name) => {
    wanted = facts.row(name);
    view?.goToLayer(wanted);
  };
  return { element, shown, size: grouped(timeline.total_events), reveal };
}

// The layers, by their rows in the layer table.
function layerNames(table) {
  const names = table("layers")?.names ?? [];
  return { path: (row) => names[row] ?? "", brief: (row) => (names[row] ?? "").split(".").slice(-2).join("."), row: (name) => names.indexOf(name) };
}

pictures.timeline = ({ model, data, table, reveal }) => (model.get("timeline")?.byteLength > 0
  ? timelineTab(model, data, layerNames(table), (row) => reveal("layers", row)) : null);
