// Where each architecture's time goes, and what makes one slower than another.
import { drawnToFit, swatch } from "../../draw/js/chart.js";
import { figure, freshId, h } from "../../draw/js/dom.js";
import { UNKNOWN, duration, share } from "../../draw/js/format.js";

const SHARES = { total: 72, gap: 12, letter: 6.6 };

// Width of the names, which are bold, next to a chart of this width.
export const namesWidth = (data, width) => Math.ceil(Math.min(0.28 * width, Math.max(70, ...data.names.map((name) => 7.6 * name.length + 6))));

export function architectureShares(data) {
  const state = { by: 0, whole: false, a: -1, b: -1, told: false };
  const time = data.metrics[0].values;
  const order = data.names.map((_, i) => i).filter((i) => time[i] != null).sort((a, b) => time[b] - time[a]);
  if (order.length > 1) [state.a, state.b] = [order[0], order.at(-1)];
  const holder = h("div", { class: "pf-share-rows" });
  const [amount, chips] = [h("span", { class: "pf-answer" }), h("div")];
  const tip = h("p", { class: "pf-tip", role: "status" });
  const light = (at) => {
    for (const part of holder.querySelectorAll("[data-part]")) part.classList.toggle("pf-lit", Number(part.dataset.part) === at);
    holder.classList.toggle("pf-dimmed", at >= 0);
    tip.replaceChildren(...shareWords(data, data.shares[state.by].parts[at]));
  };
  const refit = drawnToFit(holder, (width) => holder.replaceChildren(...shareRows(data, state, width, light)));
  const update = () => {
    refit();
    const { words, list } = differences(data, state, light);
    amount.replaceChildren(...words);
    chips.replaceChildren(list);
    light(-1);
  };
  const pick = (key) => (value) => {
    state[key] = value;
    update();
  };
  const head = h("div", { class: "pf-toolbar" }, h("h3", {}, "Where the time goes"), h("span", { class: "pf-switches" },
    choice("Split by", data.shares.map(({ word }, i) => [i, `by ${word}`]), state.by, pick("by")),
    choice("Length of the bars", [[false, "time"], [true, "share"]], state.whole, pick("whole"))));
  const question = state.a < 0 ? null : whyQuestion(data, state, update);
  question?.append(amount);
  update();
  return h("section", { "aria-label": "Where the time goes" }, head, holder, question, chips, tip);
}

// A choice of a few words as radio buttons: arrow keys move between them.
function choice(label, options, chosen, pick) {
  const name = freshId("choice");
  return h("span", { class: "pf-choice", role: "radiogroup", "aria-label": label }, options.map(([value, word]) => h("label", {},
    h("input", { type: "radio", name, checked: value === chosen, change: () => pick(value) }), h("span", {}, word))));
}

export function picker(label, words, chosen, pick) {
  const list = h("select", { "aria-label": label, change: () => pick(Number(list.value)) },
    words.map(([value, word, missing]) => h("option", { value, selected: value === chosen, disabled: missing }, word)));
  return list;
}

// "Why is A slower than B?"; the wording depends on the measurement.
function whyQuestion(data, state, update) {
  const [before, between, after] = [h("span"), h("span"), h("span")];
  const entries = data.names.map((name, i) => [i, name]);
  const ask = () => {
    const pair = data.ratios.find(({ pair: [x, y] }) => (x === state.a && y === state.b) || (x === state.b && y === state.a));
    const more = data.metrics[0].values[state.a] - data.metrics[0].values[state.b];
    const told = state.a !== state.b && (!pair || pair.told);
    state.told = told;
    before.textContent = told ? "Why is" : "Where does";
    between.textContent = told ? `${more < 0 ? "faster" : "slower"} than` : "differ from";
    after.textContent = told || state.a === state.b ? "?" : "? No overall difference is detectable.";
  };
  const choose = (key) => (i) => {
    state[key] = i;
    ask();
    update();
  };
  ask();
  return h("p", { class: "pf-why" }, before, picker("This architecture", entries, state.a, choose("a")), between,
    picker("Compared with", entries, state.b, choose("b")), after);
}

const signedDuration = (ms) => `${ms < 0 ? "−" : "+"}${duration(Math.abs(ms))}`;

// The parts of the time as a legend; for two that differ detectably, how much more each part takes, largest first.
function differences(data, state, light) {
  const { parts } = data.shares[state.by];
  const shown = parts.map((part, at) => ({ part, at })).filter(({ part }) => part.ms.some((ms) => ms > 0));
  for (const entry of shown) {
    const [a, b] = [entry.part.ms[state.a], entry.part.ms[state.b]];
    entry.more = state.told && a != null && b != null && (a || b) ? a - b : null;
  }
  const known = shown.filter(({ more }) => more != null);
  const total = known.reduce((sum, { more }) => sum + more, 0);
  if (known.length) shown.sort((x, y) => (x.more == null) - (y.more == null) || Math.sign(total || 1) * (y.more - x.more));
  const words = known.length ? [h("b", {}, figure(duration(Math.abs(total)))), ` ${total < 0 ? "less" : "more"} per step:`] : [];
  const list = h("ul", { class: "pf-legend" }, shown.map(({ part, at, more }) => h("li", {}, h("button", {
    type: "button", class: "pf-chip", "data-part": at, pointerenter: () => light(at), pointerleave: () => light(-1), focus: () => light(at), blur: () => light(-1),
  }, swatch(part), h("span", { class: "pf-word" }, part.word), more == null ? null : h("b", {}, figure(signedDuration(more)))))));
  return { words, list };
}

// "attention: mlp none, transformer 7.32 ms (41 %)".
function shareWords(data, part) {
  if (!part) return [h("span", { class: "pf-quiet" }, "Hover over a part or focus it with the keyboard for its time in each architecture.")];
  const amount = (i) => (part.ms[i] == null ? UNKNOWN : part.ms[i] === 0 ? "none" : `${duration(part.ms[i])} (${share(part.share[i])})`);
  return [swatch(part), h("b", {}, ` ${part.word}: `), data.names.map((name, i) => `${name} ${amount(i)}`).join("; ")];
}

// One bar per architecture; below it the labels that fit.
function shareRows(data, state, width, light) {
  const { parts, word } = data.shares[state.by];
  const time = data.metrics[0].values;
  const sums = data.names.map((_, i) => parts.reduce((sum, part) => sum + (part.ms[i] ?? 0), 0));
  const longest = Math.max(1e-12, ...sums);
  const names = namesWidth(data, width);
  const room = width - names - SHARES.total - 2 * SHARES.gap;
  return data.names.map((name, i) => {
    const own = parts.map((part, at) => ({ ...part, at })).filter((part) => part.ms[i] > 0);
    const words = own.map((part) => `${part.word} ${duration(part.ms[i])}, ${share(part.share[i])}`);
    const scale = state.whole ? room / (sums[i] || 1) : room / longest;
    const wide = (part) => part.ms[i] * scale;
    const said = (part) => [`${part.word} ${share(part.share[i])}`, part.word].find((text) => SHARES.letter * text.length + 8 <= wide(part)) ?? "";
    const bar = h("div", { class: "pf-share-bar", role: "img", "aria-label": `Time of ${name} by ${word}: ${words.join("; ") || "not measured"}` },
      own.map((part, at) => h("i", {
        class: `pf-${part.pattern}`, "data-part": part.at, title: words[at], pointerenter: () => light(part.at), pointerleave: () => light(-1),
        style: `background-color:${part.colour};width:${wide(part)}px`,
      })));
    const below = h("div", { class: "pf-share-words", "aria-hidden": "true" }, own.map((part) => h("span", { style: `width:${wide(part)}px` }, said(part))));
    return h("div", { class: "pf-share-row", style: `grid-template-columns:${names}px minmax(0, 1fr) ${SHARES.total}px` }, h("span", { class: "pf-name", title: name }, name),
      h("div", {}, own.length ? [bar, below] : h("span", { class: "pf-quiet" }, `${UNKNOWN}: its time by ${word} was not measured`)),
      h("span", { class: "pf-share-total" }, figure(duration(time[i]))));
  });
}
