// The timeline's actions, and the handlers that connect them to buttons, keys, the wheel and pointer gestures.
import { moveTo } from "../../draw/js/canvas.js";
import { onKeys } from "../../draw/js/dom.js";
import { timelineTip } from "./details.js";
import { LANE } from "./frame.js";

const SHORTEST_NS = 20;
const MOST_LINES = 200;

export function timelineActs(state, frame, words, ui) {
  const bounds = () => {
    const { start_ns: begin, end_ns: end } = state.store.header;
    return [begin - 0.015 * (end - begin), end + 0.015 * (end - begin)];
  };
  const act = {
    // Shows a time range, either immediately or with an animation of a few frames.
    show(t0, t1, now = false) {
      moveTo(state, bounds(), SHORTEST_NS, t0, t1, now);
      ui.redraw();
    },
    zoom(factor, px = frame.size.width / 2) {
      const [a, b] = state.goal ?? [state.t0, state.t1];
      const held = a + (px / frame.size.width) * (b - a);
      const span = Math.max(SHORTEST_NS, (b - a) * factor);
      act.show(held - (px / frame.size.width) * span, held + (1 - px / frame.size.width) * span);
    },
    pan(part) {
      const [a, b] = state.goal ?? [state.t0, state.t1];
      act.show(a + part * (b - a), b + part * (b - a));
    },
    whole: () => act.show(...bounds()),
    zoomTo(i) {
      const room = Math.max(SHORTEST_NS, state.store.duration[i]) * 0.35;
      act.show(state.store.start[i] - room, state.store.end(i) + room);
    },
    focus() {
      const event = [state.selected, state.hovered].find((i) => i >= 0);
      if (state.interval) act.show(...state.interval);
      else if (event != null) act.zoomTo(event);
      else ui.say("Nothing is selected: click an event or press Enter, then F zooms to it.");
    },
    enter() {
      if (state.interval || state.selected >= 0) act.focus();
      else act.choose(act.anyInSight());
    },
    // The event where keyboard navigation starts: the longest visible layer, or the longest event if there are no layers.
    anyInSight() {
      const { store: now, t0, t1 } = state;
      const rows = [...now.rows].sort((a, b) => (b.track.kind === "layers") - (a.track.kind === "layers"));
      for (const row of rows) {
        const { from, to } = now.inside(row, t0, t1);
        if (to > from) return now.longest(from, to);
      }
      return -1;
    },
    choose(i, bring = false, zoom = false) {
      const { store: now } = state;
      state.selected = i;
      state.interval = null;
      state.layer = i >= 0 ? now.layer[i] : -1;
      state.links = [];
      if (i >= 0) {
        const link = (from, to) => from >= 0 && to >= 0 && state.links.push({ from, to });
        const { layers, nodes } = now.backwardOf(i);
        for (const from of new Set([now.layerAround(i), now.launcher(i), now.launch[i], ...now.forwardOf(i)])) link(from, i);
        for (const to of now.launched(i).events.slice(0, MOST_LINES)) link(i, to);
        for (const to of (layers.length ? layers : nodes).slice(0, MOST_LINES)) link(i, to);
      }
      ui.describe();
      ui.spoken.textContent = i >= 0 ? `${words.brief(i)}, ${words.when(now.start[i])}` : "";
      if (i >= 0 && bring) act.bring(i, zoom);
      ui.redraw();
    },
    // Scrolls to an event, opens its track, and zooms in if it would be too small to see.
    bring(i, zoom) {
      const { store: now } = state;
      const row = now.rowOf(i);
      const lane = ui.layout().laneOf.get(row.track);
      if (lane.folded && row.depth > lane.rows[0].depth) ui.fold(lane);
      const y = frame.rowTop(row);
      if (y < ui.scroller.scrollTop || y + LANE.row > ui.scroller.scrollTop + ui.scroller.clientHeight) ui.scroller.scrollTop = y - ui.scroller.clientHeight / 2;
      state.scroll = ui.scroller.scrollTop;
      const [a, b] = state.goal ?? [state.t0, state.t1];
      const [from, to, span] = [now.start[i], now.end(i), b - a];
      if (zoom || now.duration[i] > span * 1.5 || now.duration[i] < span / frame.size.width / 2) act.zoomTo(i);
      else if (from < a || to > b) act.show((from + to) / 2 - span / 2, (from + to) / 2 + span / 2);
    },
    beside(direction) {
      if (state.selected < 0) return act.pan(0.15 * direction);
      const row = state.store.rowOf(state.selected);
      const to = state.selected + direction;
      return to >= row.first && to < row.last && act.choose(to, true);
    },
    along(direction) {
      if (state.selected < 0) {
        ui.scroller.scrollTop += direction * LANE.row * 2;
        return;
      }
      const { store: now, selected } = state;
      const to = direction < 0 ? now.parent(selected) : now.longest(...now.children(selected));
      if (to >= 0) act.choose(to, true);
    },
    click: (point) => act.choose(frame.hit(point.x, point.y)?.event ?? -1),
    hover(point, event) {
      state.pointer = point;
      const found = point && frame.hit(point.x, point.y);
      state.hovered = found?.event ?? -1;
      ui.canvas.style.cursor = state.hovered >= 0 ? "pointer" : "default";
      const isNamed = found && (found.event >= 0 || found.bytes != null) && event?.pointerType !== "touch";
      ui.point(ui.shell, event, isNamed ? timelineTip(state, words, found) : null);
      ui.redraw();
    },
    mark(a, b) {
      if (state.selected >= 0) act.choose(-1);
      state.interval = [a, b];
      ui.describe();
      ui.redraw();
    },
    escape: () => (state.selected < 0 && !state.interval ? ui.canvas.blur() : act.choose(-1)),
    find() {
      ui.search.focus();
      ui.search.select();
    },
    next(direction) {
      const { store: now } = state;
      if (!now.lit) return;
      const from = state.selected;
      let hit = now.match(from, from >= 0 ? now.start[from] : state.t0, direction);
      if (hit < 0) hit = now.match(-1, direction > 0 ? -Infinity : Infinity, direction);
      if (hit < 0) return;
      act.choose(hit, true);
      ui.tell(now.rank(hit) + 1);
    },
  };
  return Object.assign(act, { bounds });
}

export function steerTimeline(canvas, scroller, state, frame, act) {
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const fingers = new Map();
  let drag = null;
  const spread = () => {
    const [a, b] = [...fingers.values()];
    return { middle: (a.x + b.x) / 2, wide: Math.max(20, Math.abs(a.x - b.x)) };
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    canvas.focus({ preventScroll: true });
    canvas.setPointerCapture(event.pointerId);
    const point = at(event);
    fingers.set(event.pointerId, point);
    drag = { ...point, t0: state.t0, t1: state.t1, scroll: scroller.scrollTop, moved: false, marks: event.shiftKey, pinch: fingers.size === 2 ? spread() : null, id: event.pointerId };
  });
  canvas.addEventListener("pointermove", (event) => {
    const point = at(event);
    if (fingers.has(event.pointerId)) fingers.set(event.pointerId, point);
    if (!drag) return act.hover(point, event);
    const span = drag.t1 - drag.t0;
    const perPixel = span / frame.size.width;
    if (drag.pinch && fingers.size === 2) {
      const now = spread();
      const wide = (span * drag.pinch.wide) / now.wide;
      const held = drag.t0 + drag.pinch.middle * perPixel;
      drag.moved = true;
      return act.show(held - (now.middle / frame.size.width) * wide, held - (now.middle / frame.size.width) * wide + wide, true);
    }
    if (drag.pinch || event.pointerId !== drag.id) return null;
    if (!drag.moved && Math.hypot(point.x - drag.x, point.y - drag.y) < 4) return null;
    drag.moved = true;
    if (drag.marks) return act.mark(...[frame.timeAt(drag.x), frame.timeAt(point.x)].sort((a, b) => a - b));
    scroller.scrollTop = drag.scroll - (point.y - drag.y);
    return act.show(drag.t0 - (point.x - drag.x) * perPixel, drag.t1 - (point.x - drag.x) * perPixel, true);
  });
  const lift = (event) => {
    fingers.delete(event.pointerId);
    if (drag && !drag.moved && !drag.pinch && event.type === "pointerup") act.click(at(event));
    if (!fingers.size) drag = null;
  };
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
  canvas.addEventListener("pointerleave", () => act.hover(null));
  canvas.addEventListener("dblclick", () => state.selected >= 0 && act.zoomTo(state.selected));
  // The wheel scrolls the page until the timeline is clicked; with Ctrl (or a pinch gesture) it always zooms.
  canvas.addEventListener("wheel", (event) => {
    const focused = canvas.getRootNode().activeElement === canvas;
    const unit = event.deltaMode === 1 ? 16 : 1;
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (event.ctrlKey || event.metaKey || (focused && !event.shiftKey && !sideways)) act.zoom(1.0018 ** (event.deltaY * unit * (event.ctrlKey ? 3 : 1)), at(event).x);
    else if (sideways && !event.shiftKey) act.pan((event.deltaX * unit) / frame.size.width);
    else if (focused && event.shiftKey) scroller.scrollTop += (event.deltaY || event.deltaX) * unit;
    else return;
    event.preventDefault();
  }, { passive: false });

  const zoomIn = () => act.zoom(1 / 1.4, state.pointer?.x);
  const zoomOut = () => act.zoom(1.4, state.pointer?.x);
  const keys = {
    w: zoomIn, s: zoomOut, "+": () => act.zoom(1 / 1.4), "-": () => act.zoom(1.4), "=": () => act.zoom(1 / 1.4), a: () => act.pan(-0.15), d: () => act.pan(0.15), f: act.focus,
    0: act.whole, Home: act.whole, ArrowLeft: () => act.beside(-1), ArrowRight: () => act.beside(1), ArrowUp: () => act.along(-1), ArrowDown: () => act.along(1),
    Enter: act.enter, "/": act.find, n: () => act.next(1), N: () => act.next(-1), Escape: act.escape,
    PageUp: () => { scroller.scrollTop -= 0.8 * scroller.clientHeight; }, PageDown: () => { scroller.scrollTop += 0.8 * scroller.clientHeight; },
  };
  for (const key of "wsadf") keys[key.toUpperCase()] = keys[key];
  onKeys(canvas, keys);
}

// The overview. The window and its edges can be dragged, and a click moves the window.
export function steerOverview(top, state, frame, act) {
  let drag = null;
  const timeAt = (event) => {
    const { start_ns: begin, end_ns: end } = state.store.header;
    const px = event.clientX - top.getBoundingClientRect().left - frame.size.gutter;
    return begin + (px / frame.size.width) * (end - begin);
  };
  const partOf = (event) => {
    if (event.offsetY > LANE.overview) return null;
    const { start_ns: begin, end_ns: end } = state.store.header;
    const near = (6 * (end - begin)) / frame.size.width;
    const edges = state.t1 - state.t0 > near ? ["t0", "t1"] : [];
    return edges.find((edge) => Math.abs(timeAt(event) - state[edge]) < near) ?? "both";
  };
  top.addEventListener("pointerdown", (event) => {
    const part = partOf(event);
    if (event.button || !part) return;
    top.setPointerCapture(event.pointerId);
    const time = timeAt(event);
    const half = (state.t1 - state.t0) / 2;
    if (part === "both" && (time < state.t0 || time > state.t1)) act.show(time - half, time + half, true);
    drag = { part, time, t0: state.t0, t1: state.t1 };
  });
  top.addEventListener("pointermove", (event) => {
    if (!drag) {
      const part = partOf(event);
      top.style.cursor = part === "both" ? "grab" : part ? "ew-resize" : "default";
      return;
    }
    const moved = timeAt(event) - drag.time;
    if (drag.part === "both") act.show(drag.t0 + moved, drag.t1 + moved, true);
    else if (drag.part === "t0") act.show(Math.min(drag.t0 + moved, drag.t1 - 50), drag.t1, true);
    else act.show(drag.t0, Math.max(drag.t1 + moved, drag.t0 + 50), true);
  });
  for (const end of ["pointerup", "pointercancel"]) top.addEventListener(end, () => { drag = null; });
  top.addEventListener("dblclick", () => act.whole());
}
