// The timeline's texts, which describe the event under the pointer, the selected event, a time range, and the longest
// events.
import { swatch } from "../../draw/js/chart.js";
import { factRows, figure, h, linkTo } from "../../draw/js/dom.js";
import { byteSize, duration, grouped, share } from "../../draw/js/format.js";
import { smallTable } from "../../draw/js/grid.js";
import { PLAIN_TRACKS } from "./store.js";

const MOST_PARTNERS = 12;
const MOST_LISTED = 200;

// Times are relative to the zero of the axis, which is the start of the first step.
const fromFirstStep = (time) => `${time < 0 ? "−" : ""}${duration(Math.abs(time) / 1e6)}`;

export function timelineWords(state, facts) {
  const layerPath = (code) => {
    const row = state.store.header.layer_rows[code] ?? -1;
    return row >= 0 ? facts.path(row) : state.store.header.layers[code];
  };
  const of = (table, code) => (code >= 0 ? state.store.header[table][code] : null) ?? null;
  const about = (i) => {
    const { store } = state;
    const code = store.layer[i];
    return {
      name: of("names", store.name[i]), kind: store.header.kinds[store.kind[i]], category: of("categories", store.category[i]), detail: of("details", store.detail[i]),
      layer: code >= 0 ? layerPath(code) : null, layerRow: code >= 0 ? store.header.layer_rows[code] ?? -1 : -1, track: store.rowOf(i).track,
    };
  };
  // Describes a time by the step that contains it and the offset: "1.23 ms into step 2".
  const when = (time) => {
    const { store } = state;
    const at = store.stepAt(time);
    if (at < 0) return `${fromFirstStep(time)} from the start of the first step`;
    return `${duration((time - store.start[at]) / 1e6)} into ${of("names", store.name[at])}`;
  };
  // The label of a link to an event. Layers have their full path, because their own name may be just a number.
  const called = (i) => {
    const { name, layer, track } = about(i);
    return track.kind === "layers" && layer ? layer : name;
  };
  const brief = (i) => {
    const { name, kind, track } = about(i);
    return `${name}, ${duration(state.store.duration[i] / 1e6)}, ${kind.word}, ${track.title}`;
  };
  return { about, when, called, brief };
}

export function timelineTip(state, words, found) {
  const { store } = state;
  if (found.bytes !== undefined) return [h("b", {}, `${byteSize(found.bytes)} alive`), h("span", { class: "pf-quiet" }, `${found.title} · ${words.when(found.time)}`)];
  const i = found.event;
  const { name, kind, category, detail, layer } = words.about(i);
  return [
    h("b", { class: "pf-name" }, name),
    h("span", {}, h("b", {}, figure(duration(store.duration[i] / 1e6))), ` · ${words.when(store.start[i])}`),
    h("span", { class: "pf-kind" }, swatch(kind), [kind.word, category].filter(Boolean).join(" · ")),
    layer && h("span", { class: "pf-name" }, layer), detail && h("span", { class: "pf-quiet pf-name" }, detail),
    found.of > 1 ? h("span", { class: "pf-quiet" }, `the longest of ${grouped(found.of)} at this pixel`) : null,
  ].filter(Boolean);
}

// Describes the selected event. `jump` selects another event.
export function eventDetails(state, words, jump, showLayer) {
  const { store, selected: i } = state;
  const { name, kind, category, detail, layer, layerRow, track } = words.about(i);
  const ms = (ns) => figure(duration(ns / 1e6));
  const link = (k) => linkTo(words.called(k), `${words.brief(k)}. Go to it`, () => jump(k));
  // An op launches device work through a call inside it, so there is a link to each of them.
  const call = (k) => (k === store.launcher(i) && store.launch[i] !== k ? [" (", link(store.launch[i]), ")"] : null);
  const partner = (k) => h("li", {}, h("span", { class: "pf-tl-partner" }, link(k), call(k)), h("span", { class: "pf-quiet" }, figure(duration(store.duration[k] / 1e6)), ` · ${words.about(k).track.title}`));
  const group = (title, events, more = "") => events.length > 0 && h("section", {}, h("h4", {}, title, more ? h("span", { class: "pf-quiet" }, ` ${more}`) : null),
    h("ul", {}, events.slice(0, MOST_PARTNERS).map(partner)),
    events.length > MOST_PARTNERS ? h("p", { class: "pf-quiet" }, `and ${grouped(events.length - MOST_PARTNERS)} more`) : null);
  const [work, back] = [store.launched(i), store.backwardOf(i)];
  const only = (k) => (k >= 0 ? [k] : []);
  const groups = [
    group("Launched by", only(store.launcher(i) >= 0 ? store.launcher(i) : store.launch[i])),
    group("Launched on the device", work.events, `${grouped(work.events.length)}, ${duration(work.busy / 1e6)}`),
    group(PLAIN_TRACKS.has(track.kind) ? "Forward" : "Forward op", store.forwardOf(i)), group("Backward", back.layers), group("Backward ops", back.nodes), group(PLAIN_TRACKS.has(track.kind) ? "Inside" : "Called by", only(store.parent(i))),
  ].filter(Boolean);
  const [from, to] = store.children(i);
  return [
    h("h3", {}, name),
    factRows([
      ["duration", ms(store.duration[i])], ["start", words.when(store.start[i])], ["self", to > from ? ms(store.self(i)) : null],
      ["kind", h("span", { class: "pf-kind" }, swatch(kind), kind.word)], ["category", category], ["on", track.title], ["shapes", detail]]),
    layer && h("p", {}, h("span", { class: "pf-quiet" }, "Layer "),
      layerRow >= 0 ? linkTo(layer, `Show ${layer} in the Layers tab`, () => showLayer(layerRow)) : h("span", { class: "pf-name" }, layer)),
    groups.length > 0 && h("div", { class: "pf-tl-partners" }, groups),
  ].filter(Boolean);
}

// Describes the events in the marked time range, by track.
export function intervalDetails(state, words) {
  const { store, interval: [t0, t1] } = state;
  const rows = store.tracks.filter((track) => track.rows.length).map((track) => {
    const busy = store.inside(track.rows[0], t0, t1).busy;
    const events = track.rows.reduce((sum, row) => {
      const { from, to } = store.inside(row, t0, t1);
      return sum + to - from;
    }, 0);
    return events > 0 && [h("span", { class: "pf-name" }, track.title), figure(grouped(events)), figure(duration(busy / 1e6)), figure(share(busy / (t1 - t0)))];
  }).filter(Boolean);
  return [
    h("h3", {}, `Marked: ${duration((t1 - t0) / 1e6)}`), h("p", { class: "pf-quiet" }, `from ${words.when(t0)} to ${words.when(t1)}`),
    rows.length ? smallTable("Events in the marked time range", { words: ["Track", "Events", "Busy", "Share"], text: 1 }, rows) : h("p", { class: "pf-quiet" }, "Nothing ran here."),
  ];
}

// A table of the longest visible events, for readers who cannot see the picture.
export function timelineTable(state, words, facts, jump) {
  const { store } = state;
  const found = store.longestIn(state.t0, state.t1, MOST_LISTED);
  const caption = `${store.lit ? "Matches" : "Events"} in the visible range, longest first${found.length < MOST_LISTED ? "" : ` (only ${MOST_LISTED} are listed)`}`;
  const rows = found.map((i) => {
    const { name, layer, layerRow, kind, track } = words.about(i);
    return [h("button", { type: "button", class: "pf-link pf-name", title: name, "aria-pressed": String(i === state.selected), click: () => jump(i) }, name),
      h("span", { class: "pf-name", title: layer }, layerRow >= 0 ? facts.brief(layerRow) : layer ?? "–"), h("span", { class: "pf-kind" }, swatch(kind), kind.word), h("span", { title: track.title }, track.title),
      h("span", { title: words.when(store.start[i]) }, figure(fromFirstStep(store.start[i]))), figure(duration(store.duration[i] / 1e6))];
  });
  return [h("p", { class: "pf-quiet" }, caption), smallTable(caption, { words: ["Event", "Layer", "Kind", "Track", "Start", "Duration"], text: 4 }, rows)];
}
