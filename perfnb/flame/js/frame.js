// Drawing one frame of a flame graph: calls within one pixel are drawn as one, so that a frame costs as much as its pixels,
// however many calls there are.
import { canvasTheme, mixed } from "../../draw/js/canvas.js";
import { flameFirst } from "./store.js";

export const FLAME_ROW = 18;
const FLAME_SHADES = [-0.14, -0.06, 0, 0.1, 0.2];
const FLAME_STEPS = 6;
const FLAME_LEAST = 36;
const FLAME_LETTER = 6.1;

const flameRgb = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
const flameCss = (colour) => `rgb(${colour.map(Math.round).join(",")})`;

export function flameFrame(state, canvas) {
  const context = canvas.getContext("2d");
  const size = { width: 0, height: 0, ratio: 1 };
  let [theme, colours, inks] = [null, [], []];

  // The place in `colours` of each call.
  const codesOf = (store) => {
    const codes = new Uint16Array(store.size);
    const { data, by } = state;
    const marks = marksOf();
    const most = by === "change" ? Math.max(1e-12, largestChange(store)) : 1;
    for (let i = 0; i < store.size; i += 1) {
      const f = store.name[i];
      if (by === "change") {
        const grew = store.total[i] - store.totalBefore[i];
        const step = Math.min(FLAME_STEPS, Math.ceil((Math.abs(grew) / most) ** 0.5 * FLAME_STEPS - 0.3));
        codes[i] = Math.abs(grew) <= 1e-9 * store.whole ? FLAME_STEPS : grew > 0 ? FLAME_STEPS + step : FLAME_STEPS - step;
      } else {
        const shade = data.kinds[f] ? 2 : (Math.imul(f + 1, 0x9e3779b1) >>> 16) % FLAME_SHADES.length;
        const outer = store.root[i] < 0 ? null : data.phases[store.name[store.root[i]]];
        const mark = by === "phase" && outer ? marks.phases.get(outer.word) : marks.packages + data.group[f];
        codes[i] = (data.kinds[f] === "layer" && by !== "phase" ? marks.packages + data.groups.length - 1 : mark) * FLAME_SHADES.length + shade;
      }
    }
    return codes;
  };
  const largestChange = (store) => {
    let most = 0;
    for (const row of store.rows.slice(0, 40)) for (const i of row) most = Math.max(most, Math.abs(store.total[i] - store.totalBefore[i]));
    return most;
  };
  const marksOf = () => {
    const phases = new Map();
    for (const mark of state.data.phases) if (mark && !phases.has(mark.word)) phases.set(mark.word, phases.size);
    return { phases, packages: phases.size };
  };
  const recolour = () => {
    if (!theme) return;
    const full = [];
    if (state.by === "change") {
      const [less, more, same] = [flameRgb("#0072B2"), flameRgb("#D55E00"), mixed(theme.fg, theme.bg, 0.16)];
      for (let step = -FLAME_STEPS; step <= FLAME_STEPS; step += 1) full.push(mixed(step < 0 ? less : more, same, step ? 0.25 + (0.75 * Math.abs(step)) / FLAME_STEPS : 0));
    } else {
      const seen = new Map();
      for (const mark of state.data.phases) if (mark) seen.set(mark.word, mark.colour);
      for (const colour of [...seen.values(), ...state.data.groups.map((group) => group.colour)]) {
        for (const shade of FLAME_SHADES) full.push(mixed(shade < 0 ? [0, 0, 0] : [255, 255, 255], flameRgb(colour), Math.abs(shade)));
      }
    }
    const dim = full.map((colour) => mixed(mixed(colour, theme.fg, 0.25), theme.bg, 0.18));
    colours = [...full, ...dim].map(flameCss);
    inks = [...full, ...dim].map(([r, g, b]) => (0.3 * r + 0.59 * g + 0.11 * b > 128 ? "#000" : "#fff"));
    for (const part of state.parts) part.codes = codesOf(part.store);
  };
  const setTheme = (element) => {
    theme = canvasTheme(element);
    recolour();
  };
  const resize = (width, height) => {
    Object.assign(size, { width, height, ratio: window.devicePixelRatio || 1 });
    [canvas.width, canvas.height] = [Math.round(width * size.ratio), Math.round(height * size.ratio)];
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  };
  const top = (part, level) => (part.up ? part.base - level : part.base + level) * FLAME_ROW;
  const height = () => Math.max(1, ...state.parts.map((part) => (part.up ? part.base + 1 : part.base + part.store.rows.length))) * FLAME_ROW;
  const x = (value) => ((value - state.t0) / (state.t1 - state.t0)) * size.width;

  // One row, on whole pixels; calls with room for a name go to `named`.
  const paintRow = (part, level, y, named) => {
    const { store, codes } = part;
    const row = store.rows[level];
    const across = canvas.width;
    const scale = across / (state.t1 - state.t0);
    let k = flameFirst(store, level, state.t0);
    while (k < row.length && store.start[row[k]] < state.t1) {
      const i = row[k];
      const from = (store.start[i] - state.t0) * scale;
      const wide = store.wide[i] * scale;
      const left = Math.max(0, Math.round(from));
      const right = Math.min(across, Math.max(left + 1, Math.round(from + wide)));
      if (from + wide > 0 && left < across) {
        const code = codes[i] + (state.lit && !state.lit[store.name[i]] ? colours.length / 2 : 0);
        context.fillStyle = colours[code];
        context.fillRect(left / size.ratio, y, (right - left - (right - left > 3 ? 1 : 0)) / size.ratio, FLAME_ROW - 1);
        if ((right - left) / size.ratio > FLAME_LEAST) named.push({ i, store, left: left / size.ratio, right: right / size.ratio, y, code });
      }
      if (wide >= 1) k += 1;
      else k = Math.max(k + 1, flameFirst(store, level, state.t0 + (left + 1) / scale));  // many calls within one pixel
    }
  };
  const outline = ({ part, i }, colour, wide) => {
    const { store } = part;
    const [from, to] = [Math.max(-4, x(store.start[i])), Math.min(size.width + 4, x(store.start[i] + store.wide[i]))];
    context.strokeStyle = colour;
    context.lineWidth = wide;
    context.strokeRect(from + 0.5, top(part, store.depth[i]) - state.scroll + 0.5, Math.max(2, to - from - 1), FLAME_ROW - 2);
  };
  const draw = () => {
    if (!theme || !size.width) return;
    context.setTransform(size.ratio, 0, 0, size.ratio, 0, 0);
    context.clearRect(0, 0, size.width, size.height);
    const named = [];
    for (const part of state.parts) {
      part.store.rows.forEach((_, level) => {
        const y = top(part, level) - state.scroll;
        if (y > -FLAME_ROW && y < size.height && !(part.up && level === 0)) paintRow(part, level, y, named);
      });
    }
    context.font = `11px ${theme.family}`;
    context.textBaseline = "middle";
    const { data } = state;
    for (const box of named) {
      const { store } = box;
      let text = data.names[store.name[box.i]];
      if (state.by === "change") {
        const grew = store.total[box.i] - store.totalBefore[box.i];
        if (Math.abs(grew) > 1e-9 * store.whole) text = `${grew > 0 ? "+" : "−"} ${text}`;
      }
      const room = Math.floor((box.right - box.left - 8) / FLAME_LETTER);
      context.fillStyle = inks[box.code];
      context.fillText(text.length > room ? `${text.slice(0, Math.max(1, room - 1))}…` : text, box.left + 4, box.y + FLAME_ROW / 2);
    }
    canvas.dataset.calls = String(named.length);
    if (state.hovered) outline(state.hovered, flameCss(theme.fg), 1);
    if (state.selected && state.parts.includes(state.selected.part)) {
      outline(state.selected, flameCss(theme.bg), 4);
      outline(state.selected, flameCss(theme.fg), 2);
    }
  };
  const at = (px, py) => {
    const value = state.t0 + (px / size.width) * (state.t1 - state.t0);
    for (const part of state.parts) {
      const away = Math.floor((py + state.scroll) / FLAME_ROW) - part.base;
      const level = part.up ? -away : away;
      if (level < (part.up ? 1 : 0) || level >= part.store.rows.length) continue;
      const { store } = part;
      const row = store.rows[level];
      for (let k = flameFirst(store, level, value); k < row.length && store.start[row[k]] <= value; k += 1) {
        if (store.start[row[k]] + store.wide[row[k]] > value) return { part, i: row[k] };
      }
    }
    return null;
  };
  return { size, draw, at, top, height, resize, setTheme, recolour };
}
