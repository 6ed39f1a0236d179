// The elements around a canvas of boxes, and the code that connects them to buttons, keys, the wheel and the pointer.
import { canvasTheme, ROW } from "./canvas.js";
import { closeButton, freshId, h, holdsFocus, onKeys, searchInput } from "./dom.js";

const TALLEST = 480;
const KEYS = [
  ["Wheel", "zoom after a click, or with Ctrl"], ["Drag", "pan"], ["W S A D", "zoom, pan"], ["← →", "neighbours"],
  ["↑ ↓", "caller, callee"], ["Enter F", "select, zoom to it"], ["0", "show all"], ["/", "search"], ["N", "next match"],
];

// Calls `recolour` when the notebook's theme changes, as long as the element exists.
function whenThemeChanges(element, recolour) {
  const watched = new MutationObserver(() => (element.isConnected ? recolour() : watched.disconnect()));
  for (const node of [document.body, document.documentElement]) watched.observe(node, { attributes: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
}

// `state` contains the boxes, the visible range from t0 to t1, and the selected box; `frame` draws them. `own` contains
// the properties of a particular view:
// label, words, hint, keys, gutter: its name, the words in the search box, the text without a selection, more keys, and
// the space to the left of the canvas
// buttons, head, above, inside, below: elements in the toolbar and around the canvas
// bounds(), least, margin: the limits of the visible range, and the part of a box to show around it
// lay(), recolour(): set the rows' positions and return the total height; set the colours
// search(text), status(rank): search, and return the number of matches; describe the result or one of the matches
// first(), up(i), down(i), actions: the boxes that the keys select, or -1, and more actions by key
// spoken(i), details(), tip(found): describe the selected box and the box under the pointer
// chosen(i), clicked(i), open(i), mark(a, b), settled(): optional reactions to a selection, a click, a jump to a box, a
// marked range, and the end of a movement
export function canvasView(element, state, frame, own) {
  const { canvas, size } = frame;
  const id = freshId("hint");
  for (const [name, value] of [["aria-label", own.label], ["aria-describedby", id]]) canvas.setAttribute(name, value);
  const body = h("div", { class: "pf-canvas-body" }, canvas, own.inside);
  const scroller = h("div", { class: "pf-canvas-scroll", style: `height:${TALLEST}px` }, body);
  const tip = h("div", { class: "pf-tip", "aria-hidden": "true", hidden: true });
  const more = h("button", { type: "button", class: "pf-canvas-more", hidden: true, click: () => { scroller.scrollTop += 0.8 * size.height; } }, "↓ more");
  const shell = h("div", { class: "pf-canvas-shell", style: `--pf-gutter:${own.gutter ?? 0}px` }, own.head, scroller, more, tip);
  const spoken = h("p", { class: "pf-spoken", role: "status", "aria-live": "polite" });
  const panel = h("aside", { class: "pf-details", "aria-label": `${own.label} details` });
  const [search, status] = [searchInput(own.words), h("span", { class: "pf-status", role: "status" })];
  const hints = h("p", { class: "pf-hints pf-quiet", id }, [...KEYS, ...own.keys].map(([key, word]) => h("span", {}, h("kbd", {}, key), ` ${word}`)));

  // Draws a frame, and more frames as long as the visible range moves to its goal.
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  let asked = false;
  const redraw = () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      if (state.goal) {
        const [a, b] = state.goal;
        const left = Math.max(Math.abs(a - state.t0), Math.abs(b - state.t1));
        const part = left < 0.002 * (b - a) || still.matches ? 1 : 0.32;
        [state.t0, state.t1] = [state.t0 + (a - state.t0) * part, state.t1 + (b - state.t1) * part];
        if (part === 1) state.goal = null;
      }
      if (size.width && state.theme) frame.draw();
      if (state.goal) redraw();
      else own.settled?.();
    });
  };

  const describe = () => {
    const inside = holdsFocus(panel);
    const close = () => { act.choose(-1); canvas.focus({ preventScroll: true }); };
    const content = own.details();
    panel.replaceChildren(...(content ? [closeButton(close), ...content.filter(Boolean)] : [h("p", { class: "pf-quiet" }, own.hint)]));
    if (inside) canvas.focus({ preventScroll: true });
  };
  const act = {
    redraw,
    // Shows a range, either immediately or with an animation of a few frames.
    show(t0, t1, now = false) {
      const [low, high] = own.bounds();
      const span = Math.min(high - low, Math.max(own.least, t1 - t0));
      const wanted = t1 - t0 < own.least ? (t0 + t1 - span) / 2 : t0;
      const from = Math.min(high - span, Math.max(low, wanted));
      state.goal = [from, from + span];
      if (now) [state.t0, state.t1, state.goal] = [from, from + span, null];
      redraw();
    },
    zoom(factor, px = size.width / 2) {
      const [a, b] = state.goal ?? [state.t0, state.t1];
      const [part, span] = [px / size.width, Math.max(own.least, (b - a) * factor)];
      const held = a + part * (b - a);
      act.show(held - part * span, held + (1 - part) * span);
    },
    pan(part) {
      const [a, b] = state.goal ?? [state.t0, state.t1];
      act.show(a + part * (b - a), b + part * (b - a));
    },
    whole: (now) => act.show(...own.bounds(), now === true),
    zoomTo(i) {
      const room = Math.max(own.least, state.store.duration[i]) * own.margin;
      act.show(state.store.start[i] - room, state.store.end(i) + room);
    },
    // Zooms to the marked range, the selected box or the box under the pointer, or selects a box.
    focus() {
      const i = [state.selected, state.hovered].find((one) => one >= 0);
      if (state.interval) act.show(...state.interval);
      else if (i != null) act.zoomTo(i);
      else act.choose(own.first());
    },
    choose(i, bring = false, zoom = false) {
      state.selected = i;
      own.chosen?.(i);
      describe();
      spoken.textContent = i >= 0 ? own.spoken(i) : "";
      if (i >= 0 && bring) act.bring(i, zoom);
      redraw();
    },
    // Scrolls to a box, and zooms in if it would be too small to see.
    bring(i, zoom) {
      const { store } = state;
      own.open?.(i);
      const { y } = store.rowOf(i);
      if (y < scroller.scrollTop || y + ROW > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = y - scroller.clientHeight / 2;
      const [a, b] = state.goal ?? [state.t0, state.t1];
      const [from, to, span] = [store.start[i], store.end(i), b - a];
      if (zoom || to - from > span * 1.5 || to - from < span / size.width / 2) act.zoomTo(i);
      else if (from < a || to > b) act.show((from + to) / 2 - span / 2, (from + to) / 2 + span / 2);
    },
    beside(direction) {
      if (state.selected < 0) return act.pan(0.15 * direction);
      const { first, last } = state.store.rowOf(state.selected);
      const to = state.selected + direction;
      return to >= first && to < last && act.choose(to, true);
    },
    along(direction) {
      if (state.selected < 0) scroller.scrollTop += direction * ROW * 2;
      else {
        const to = direction < 0 ? own.up(state.selected) : own.down(state.selected);
        if (to >= 0) act.choose(to, true);
      }
    },
    // Selects the next or previous match, which is the first one in view if no match is selected.
    next(direction, zoom) {
      const { start } = state.store;
      const found = state.store.matches();
      if (!found.length) return;
      const time = state.selected >= 0 ? start[state.selected] : state.t0;
      let to = found.indexOf(state.selected);
      if (to >= 0) to += direction;
      else to = direction > 0 ? found.findIndex((i) => start[i] >= time) : found.findLastIndex((i) => start[i] < time);
      to = (Math.max(to, direction > 0 ? 0 : -1) + found.length) % found.length;
      act.choose(found[to], true, zoom);
      status.textContent = own.status(to + 1);
    },
    find(text) {
      const isEmpty = !own.search(text);
      status.textContent = own.status(0);
      for (const button of steps) button.disabled = isEmpty;
      redraw();
    },
    // Searches for a text as if it had been entered.
    look(text) {
      search.value = text;
      act.find(text);
    },
    lay() {
      const height = own.lay();
      body.style.height = `${height}px`;
      scroller.style.maxHeight = `${height}px`;
      fit();
    },
    // Draws the boxes in `state` after they have been replaced.
    accept() {
      state.hovered = -1;
      act.lay();
      recolour();
      act.find(search.value.trim());
      describe();
    },
    describe,
  };
  const fit = () => {
    if (!scroller.clientWidth) return;
    frame.resize(scroller.clientWidth - (own.gutter ?? 0), scroller.clientHeight);
    scrolled();
  };
  const scrolled = () => {
    state.scroll = scroller.scrollTop;
    more.hidden = scroller.scrollHeight - scroller.clientHeight - state.scroll < ROW;
    redraw();
  };
  const recolour = () => {
    if (!element.isConnected) return;
    state.theme = canvasTheme(element.closest(".perfnb"));
    own.recolour();
    redraw();
  };

  const button = (word, name, key, click) => h("button", { type: "button", title: `${name} (${key})`, "aria-label": name, click }, word);
  const steps = [button("‹", "Previous match", "Shift+N", () => act.next(-1)), button("›", "Next match", "N", () => act.next(1))];
  const toolbar = h("div", { class: "pf-toolbar" },
    h("span", { class: "pf-search" }, search, h("span", { class: "pf-buttons pf-steps" }, steps), status),
    h("span", { class: "pf-buttons" }, button("−", "Zoom out", "S", () => act.zoom(1.6)), button("+", "Zoom in", "W", () => act.zoom(1 / 1.6)),
      button("All", "Show all", "0", act.whole), own.buttons));
  search.addEventListener("input", () => act.find(search.value.trim()));
  onKeys(search, {
    Enter: (event) => act.next(event.shiftKey ? -1 : 1),
    Escape: () => {
      act.look("");
      canvas.focus({ preventScroll: true });
    },
  });
  onKeys(canvas, {
    w: () => act.zoom(1 / 1.4, state.pointer?.x), s: () => act.zoom(1.4, state.pointer?.x), a: () => act.pan(-0.15), d: () => act.pan(0.15),
    f: act.focus, Enter: act.focus, 0: act.whole, "/": () => search.focus(), n: () => act.next(1), N: () => act.next(-1),
    ArrowLeft: () => act.beside(-1), ArrowRight: () => act.beside(1), ArrowUp: () => act.along(-1), ArrowDown: () => act.along(1),
    Escape: () => (state.selected >= 0 || state.interval ? act.choose(-1) : canvas.blur()), ...own.actions,
  });

  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  // Shows what is at the pointer in a tooltip next to it.
  const hover = (event) => {
    state.pointer = event && at(event);
    const found = event && frame.hit(state.pointer);
    state.hovered = found?.event ?? -1;
    canvas.style.cursor = state.hovered >= 0 ? "pointer" : "default";
    const content = found && own.tip(found);
    tip.hidden = !content;
    if (content) {
      tip.replaceChildren(...content.filter(Boolean));
      const box = shell.getBoundingClientRect();
      const [x, y] = [event.clientX - box.left, event.clientY - box.top];
      const left = x + 16 + tip.offsetWidth > box.width ? Math.max(0, x - tip.offsetWidth - 12) : x + 16;
      tip.style.transform = `translate(${Math.round(left)}px,${Math.round(y + 16)}px)`;
    }
    redraw();
  };
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button || !event.isPrimary) return;
    canvas.focus({ preventScroll: true });
    canvas.setPointerCapture(event.pointerId);
    drag = { ...at(event), t0: state.t0, t1: state.t1, scroll: scroller.scrollTop, moved: false, marks: event.shiftKey && own.mark };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return hover(event);
    const point = at(event);
    const [across, down] = [point.x - drag.x, point.y - drag.y];
    drag.moved ||= Math.hypot(across, down) >= 4;
    if (!drag.moved) return null;
    if (drag.marks) return own.mark(...[frame.timeAt(drag.x), frame.timeAt(point.x)].sort((a, b) => a - b));
    const time = (across / size.width) * (drag.t1 - drag.t0);
    scroller.scrollTop = drag.scroll - down;
    return act.show(drag.t0 - time, drag.t1 - time, true);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) {
      act.choose(frame.hit(at(event))?.event ?? -1);
      own.clicked?.(state.selected);
    }
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => hover(null));
  canvas.addEventListener("dblclick", () => state.selected >= 0 && act.zoomTo(state.selected));
  // The wheel scrolls the page until the canvas is clicked; with Ctrl (or a pinch gesture) it always zooms.
  canvas.addEventListener("wheel", (event) => {
    const unit = event.deltaMode === 1 ? 16 : 1;
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    const withKey = event.ctrlKey || event.metaKey;
    if (withKey || (holdsFocus(canvas) && !sideways)) act.zoom(1.0018 ** (event.deltaY * unit * (withKey ? 3 : 1)), at(event).x);
    else if (sideways) act.pan((event.deltaX * unit) / size.width);
    else return;
    event.preventDefault();
  }, { passive: false });

  element.replaceChildren(toolbar, ...own.above, shell, hints, panel, ...own.below, spoken);
  scroller.addEventListener("scroll", scrolled);
  new ResizeObserver(fit).observe(scroller);
  whenThemeChanges(element, recolour);
  return { ...act, shown: () => { recolour(); fit(); } };
}
