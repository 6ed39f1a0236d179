// The colours of a flame graph, by phase, by package or, in a comparison, by change.
import { boxPalette, canvasPattern, mixed, PLAIN, rgbOf, SHADES, shadeOf, shadesOf } from "../../draw/js/canvas.js";

const FLAME_STEPS = 6;
const FLAME_CHANGES = [
  { word: "+ takes more in the candidate", colour: "#D55E00", pattern: "solid" }, { word: "− takes less in the candidate", colour: "#0072B2", pattern: "hatch" },
];

// The change of a call's time, which is zero if it is only due to rounding.
export function flameChange(call, whole) {
  const change = call.total - call.totalBefore;
  return Math.abs(change) > 1e-9 * whole ? change : 0;
}

// Sets the palette and the calls' colours, and returns the marks for the legend.
export function flameColours(state, data, tree, context) {
  const { by, store, theme, whole } = state;
  if (by === "change") {
    const [more, less] = FLAME_CHANGES.map(({ colour }) => rgbOf(colour));
    const same = mixed(theme.fg, theme.bg, 0.16);
    const steps = Array.from({ length: 2 * FLAME_STEPS + 1 }, (_, k) => k - FLAME_STEPS);
    const pattern = canvasPattern(context, FLAME_CHANGES[1]);
    const fills = steps.map((step) => ({
      colour: mixed(step < 0 ? less : more, same, step ? 0.25 + (0.75 * Math.abs(step)) / FLAME_STEPS : 0), pattern: step < 0 && pattern,
    }));
    const most = store.calls.reduce((high, call) => Math.max(high, Math.abs(flameChange(call, whole))), 1e-12);
    state.palette = boxPalette(fills, theme);
    store.codes = store.calls.map((call) => {
      const change = flameChange(call, whole);
      return FLAME_STEPS + Math.sign(change) * Math.min(FLAME_STEPS, Math.ceil((Math.abs(change) / most) ** 0.5 * FLAME_STEPS - 0.3));
    });
    return FLAME_CHANGES;
  }
  const phases = [...new Map(tree.inside.map((call) => data.phases[call.name]).filter(Boolean).map((mark) => [mark.word, mark])).values()];
  state.palette = boxPalette(shadesOf([...phases, ...data.groups], context), theme);
  store.codes = store.calls.map(({ name, outermost }) => {
    const phase = by === "phase" && data.phases[outermost];
    const mark = phase ? phases.findIndex(({ word }) => word === phase.word) : phases.length + data.group[name];
    return mark * SHADES.length + (data.kinds[name] ? PLAIN : shadeOf(name));
  });
  return by === "phase" ? phases : data.groups;
}
