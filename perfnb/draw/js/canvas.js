// Colours as numbers, for what is drawn on a canvas, which knows no CSS variables.
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
