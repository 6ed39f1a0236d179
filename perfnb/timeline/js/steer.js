// How pointer, wheel and keys move the timeline.
import { LANE } from "./canvas.js";

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

  const keys = {
    w: () => act.zoom(1 / 1.4, state.pointer?.x), s: () => act.zoom(1.4, state.pointer?.x), "+": () => act.zoom(1 / 1.4), "-": () => act.zoom(1.4), "=": () => act.zoom(1 / 1.4),
    a: () => act.pan(-0.15), d: () => act.pan(0.15), 0: act.whole, Home: act.whole,
    ArrowLeft: () => act.beside(-1), ArrowRight: () => act.beside(1), ArrowUp: () => act.along(-1), ArrowDown: () => act.along(1),
    f: act.focus, Enter: act.enter, "/": act.find, n: () => act.next(1), N: () => act.next(-1), Escape: act.escape,
    PageUp: () => { scroller.scrollTop -= 0.8 * scroller.clientHeight; }, PageDown: () => { scroller.scrollTop += 0.8 * scroller.clientHeight; },
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const key = event.key.length === 1 && event.key !== "N" ? event.key.toLowerCase() : event.key;
    const run = Object.hasOwn(keys, key) ? keys[key] : null;
    if (!run || run() === false) return;
    event.preventDefault();
  });
}

// The overview: drag the window or its edges, or click to go somewhere.
export function steerOverview(top, state, frame, act) {
  let drag = null;
  const timeAt = (event) => {
    const { start_ns: begin, end_ns: end } = state.store.header;
    const px = event.clientX - top.getBoundingClientRect().left - frame.size.gutter;
    return begin + (px / frame.size.width) * (end - begin);
  };
  const partOf = (event) => {
    const { start_ns: begin, end_ns: end } = state.store.header;
    const near = (6 * (end - begin)) / frame.size.width;
    const time = timeAt(event);
    if (event.offsetY > LANE.overview) return null;
    if (Math.abs(time - state.t0) < near && state.t1 - state.t0 > near) return "t0";
    if (Math.abs(time - state.t1) < near && state.t1 - state.t0 > near) return "t1";
    return "both";
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
