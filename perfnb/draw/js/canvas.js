// Code shared by the views on a canvas, which are the timeline and the flame graph. Colours are numbers, because a
// canvas does not support CSS variables. Frames show a visible range.
import { STROKES } from "./chart.js";
import { freshId, h, searchInput } from "./dom.js";

// Mixes a part of the first colour with the second colour.
export const mixed = (a, b, part) => a.map((value, i) => value * part + b[i] * (1 - part));
export const rgbOf = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
export const cssOf = (colour, alpha = 1) => `rgba(${colour.map(Math.round).join(",")},${alpha})`;

// Boxes of the same colour are shaded by name, so that neighbours differ. The shade at PLAIN is the colour itself.
export const SHADES = [-0.16, -0.07, 0, 0.12, 0.24];
export const PLAIN = 2;
export const shadeOf = (name) => (Math.imul(name, 0x9e3779b1) >>> 16) % SHADES.length;
export const shaded = (colour) => SHADES.map((shade) => mixed(shade < 0 ? [0, 0, 0] : [255, 255, 255], colour, Math.abs(shade)));

// Black or white, whichever is more readable on the given colour.
export function inkOn(colour) {
  const linear = colour.map((c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.19 ? "#000" : "#fff";
}

// The strokes of a pattern, without a background, as a canvas fill, or nothing for a mark without a pattern.
export function canvasPattern(context, { pattern }) {
  if (!STROKES[pattern]) return null;
  const [side, path, width, shade] = STROKES[pattern];
  const fine = Math.ceil(window.devicePixelRatio || 1);
  const tile = h("canvas", { width: side * fine, height: side * fine });
  const pen = tile.getContext("2d");
  pen.scale(fine, fine);
  Object.assign(pen, { lineWidth: width, lineCap: pattern === "dots" ? "round" : "butt", strokeStyle: shade === "light" ? "#fff8" : "#0007" });
  pen.stroke(new Path2D(path));
  const fill = context.createPattern(tile, "repeat");
  fill.setTransform(new DOMMatrix().scale(1 / fine));
  return fill;
}

// The notebook's text colour, background and font at the position of an element.
export function canvasTheme(element) {
  const canvas = h("canvas", { width: 1, height: 1 });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const { color, backgroundColor, fontFamily } = getComputedStyle(element);
  const paint = (...colours) => {
    for (const colour of ["#fff", ...colours]) {
      context.fillStyle = colour;
      context.fillRect(0, 0, 1, 1);
    }
    return [...context.getImageData(0, 0, 1, 1).data.slice(0, 3)];
  };
  return { fg: paint(backgroundColor, color), bg: paint(backgroundColor), family: fontFamily };
}

// Calls `recolour` when the notebook's theme changes, as long as the element exists.
export function whenThemeChanges(element, recolour) {
  const watched = new MutationObserver(() => (element.isConnected ? recolour() : watched.disconnect()));
  for (const node of [document.body, document.documentElement]) watched.observe(node, { attributes: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
}

// Sets the size of a canvas on the page, and returns the number of canvas pixels per CSS pixel.
export function resized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  [canvas.style.width, canvas.style.height] = [`${width}px`, `${height}px`];
  return ratio;
}

// The elements around a canvas of boxes: a search box above it, a tooltip at the pointer, and keys and details below
// it.
export function canvasParts(label, words, keys) {
  const id = freshId("hint");
  const canvas = h("canvas", { class: "pf-canvas", tabindex: 0, role: "application", "aria-label": label, "aria-describedby": id });
  const body = h("div", { class: "pf-canvas-body" }, canvas);
  const tip = h("div", { class: "pf-tip", "aria-hidden": "true", hidden: true });
  const [search, status] = [searchInput(words), h("span", { class: "pf-status", role: "status" })];
  return {
    canvas, body, tip, search, status,
    scroller: h("div", { class: "pf-canvas-scroll" }, body),
    spoken: h("p", { class: "pf-spoken", role: "status", "aria-live": "polite" }),
    panel: h("aside", { class: "pf-details", "aria-label": `${label} details` }),
    hints: h("p", { class: "pf-hints pf-quiet", id }, keys.map(([key, word]) => h("span", {}, h("kbd", {}, key), ` ${word}`))),
    // Shows `content` in a tooltip at the pointer, inside `shell`, or hides the tooltip.
    point(shell, event, content) {
      tip.hidden = !content;
      if (!content) return;
      tip.replaceChildren(...content);
      const box = shell.getBoundingClientRect();
      const [x, y] = [event.clientX - box.left, event.clientY - box.top];
      const left = x + 16 + tip.offsetWidth > box.width ? Math.max(0, x - tip.offsetWidth - 12) : x + 16;
      tip.style.transform = `translate(${Math.round(left)}px,${Math.round(y + 16)}px)`;
    },
    // Calls `run` with the search text. Escape ends the search.
    whenSearched(run, next = () => {}) {
      search.addEventListener("input", () => run(search.value.trim()));
      search.addEventListener("keydown", (event) => {
        if (event.key === "Enter") next(event.shiftKey ? -1 : 1);
        else if (event.key === "Escape") {
          search.value = "";
          run("");
          canvas.focus({ preventScroll: true });
        } else return;
        event.preventDefault();
      });
    },
  };
}

// Moves the range from t0 to t1 of `state` into bounds, either immediately or over a few frames.
export function moveTo(state, [low, high], least, t0, t1, now) {
  const span = Math.min(high - low, Math.max(least, t1 - t0));
  const wanted = t1 - t0 < least ? (t0 + t1 - span) / 2 : t0;
  const from = Math.min(high - span, Math.max(low, wanted));
  state.goal = [from, from + span];
  if (now) [state.t0, state.t1, state.goal] = [from, from + span, null];
}

// Returns a function that requests a frame. `draw` is called once in that frame, and again as long as the range from t0
// to t1 of `state` moves to its goal. Then `settled` is called.
export function framesOf(state, draw, settled = () => {}) {
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
      draw();
      if (state.goal) redraw();
      else settled();
    });
  };
  return redraw;
}
