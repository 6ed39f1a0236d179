// Draws one frame of a flame graph. Calls within one pixel are drawn as one, so the cost of a frame depends on the
// number of pixels and not on the number of calls.
import { canvasTheme, cssOf, inkOn, mixed, PLAIN, resized, rgbOf, SHADES, shaded, shadeOf } from "../../draw/js/canvas.js";
import { flameFirst } from "./store.js";

export const FLAME_ROW = 18;
const FLAME_STEPS = 6;
const FLAME_LEAST = 36;
const FLAME_LETTER = 6.1;

export function flameFrame(state, canvas) {
  const context = canvas.getContext("2d");
  const size = { width: 0, height: 0, ratio: 1 };
  const { data } = state;
  const [{ store: all }] = state.parts;
  const phases = [...new Map(Array.from(all.rows[0] ?? [], (i) => data.phases[all.name[i]]).filter(Boolean).map((mark) => [mark.word, mark])).values()];
  let [theme, colours, inks] = [null, [], []];
  const grown = (store, i) => store.total[i] - store.totalBefore[i];
  const isSame = (store, i) => Math.abs(grown(store, i)) <= 1e-9 * store.whole;

  // The index of each call's colour in `colours`.
  const codesOf = (store) => {
    const byChange = state.by === "change";
    const most = byChange && store.rows.slice(0, 40).reduce((top, row) => row.reduce((high, i) => Math.max(high, Math.abs(grown(store, i))), top), 1e-12);
    return Uint16Array.from(store.name, (f, i) => {
      if (byChange) {
        const step = Math.min(FLAME_STEPS, Math.ceil((Math.abs(grown(store, i)) / most) ** 0.5 * FLAME_STEPS - 0.3));
        return isSame(store, i) ? FLAME_STEPS : FLAME_STEPS + Math.sign(grown(store, i)) * step;
      }
      const outer = state.by === "phase" && store.root[i] >= 0 && data.phases[store.name[store.root[i]]];
      const group = data.kinds[f] === "layer" && state.by !== "phase" ? data.groups.length - 1 : data.group[f];
      const mark = outer ? phases.findIndex(({ word }) => word === outer.word) : phases.length + group;
      return mark * SHADES.length + (data.kinds[f] ? PLAIN : shadeOf(f));
    });
  };
  const changes = () => {
    const [less, more, same] = [rgbOf("#0072B2"), rgbOf("#D55E00"), mixed(theme.fg, theme.bg, 0.16)];
    const steps = Array.from({ length: 2 * FLAME_STEPS + 1 }, (_, k) => k - FLAME_STEPS);
    return steps.map((step) => mixed(step < 0 ? less : more, same, step ? 0.25 + (0.75 * Math.abs(step)) / FLAME_STEPS : 0));
  };
  const recolour = () => {
    if (!theme) return;
    const full = state.by === "change" ? changes() : [...phases, ...data.groups].flatMap(({ colour }) => shaded(rgbOf(colour)));
    const all = [...full, ...full.map((colour) => mixed(mixed(colour, theme.fg, 0.25), theme.bg, 0.18))];
    colours = all.map((colour) => cssOf(colour));
    inks = all.map(inkOn);
    for (const part of state.parts) part.codes = codesOf(part.store);
  };
  const setTheme = (element) => {
    theme = canvasTheme(element);
    recolour();
  };
  const resize = (width, height) => Object.assign(size, { width, height, ratio: resized(canvas, width, height) });
  const top = (part, level) => (part.up ? part.base - level : part.base + level) * FLAME_ROW;
  const height = () => Math.max(1, ...state.parts.map((part) => (part.up ? part.base + 1 : part.base + part.store.rows.length))) * FLAME_ROW;
  const x = (value) => ((value - state.t0) / (state.t1 - state.t0)) * size.width;

  // Draws one row, aligned to whole pixels. Calls that are wide enough for a name are added to `named`.
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
    for (const box of named) {
      const { store, i } = box;
      const sign = state.by !== "change" || isSame(store, i) ? "" : grown(store, i) > 0 ? "+ " : "− ";
      const text = sign + data.names[store.name[i]];
      const room = Math.floor((box.right - box.left - 8) / FLAME_LETTER);
      context.fillStyle = inks[box.code];
      context.fillText(text.length > room ? `${text.slice(0, Math.max(1, room - 1))}…` : text, box.left + 4, box.y + FLAME_ROW / 2);
    }
    canvas.dataset.calls = String(named.length);
    if (state.hovered) outline(state.hovered, cssOf(theme.fg), 1);
    if (state.selected && state.parts.includes(state.selected.part)) {
      outline(state.selected, cssOf(theme.bg), 4);
      outline(state.selected, cssOf(theme.fg), 2);
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
  return { size, phases, draw, at, top, height, resize, setTheme, recolour };
}
