// Views on a canvas: colours as numbers, because a canvas knows no CSS variables, and frames of a visible range.
import { h } from "./dom.js";

// Part of the first colour, the rest of the second.
export const mixed = (a, b, part) => a.map((value, i) => value * part + b[i] * (1 - part));

// The notebook's text colour, its ground and its font, where an element stands.
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

// Call `recolour` when the notebook's theme changes, as long as the element is there.
export function whenThemeChanges(element, recolour) {
  const watched = new MutationObserver(() => (element.isConnected ? recolour() : watched.disconnect()));
  for (const node of [document.body, document.documentElement]) watched.observe(node, { attributes: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
}

// Returns what asks for a frame: `draw` is called once in it, and again while the range t0 to t1 of `state` moves to its
// goal; then `settled` is.
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
