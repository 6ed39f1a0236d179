// Comparison of architectures: why one is slower, on one screen. Where each one's time goes, one metric of each and two
// against each other, and the layers side by side.
import { drawnToFit, levelRules, logTicks, namesBeside, niceTicks, roundNumber, roundSize, swatch, uprightRules } from "../../draw/js/chart.js";
import { drawn, figure, freshId, h, moreButton, notesSection, titled } from "../../draw/js/dom.js";
import { UNKNOWN, byteSize, count, duration, flopCount, flopRate, intensityWords, intervalBounds, rate, share, significant } from "../../draw/js/format.js";
import { Grid, figureColumn, nameColumn } from "../../draw/js/grid.js";
import { widgetOf } from "../../draw/js/notebook.js";
import { DIRECTIONS, layerFacts } from "../../profile/js/layers.js";

const SHARES = { total: 72, gap: 12, letter: 6.6 };

// Width of the names, which are bold, next to a chart of this width.
const namesWidth = (data, width) => Math.ceil(Math.min(0.28 * width, Math.max(70, ...data.names.map((name) => 7.6 * name.length + 6))));

function architectureShares(data) {
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

function picker(label, words, chosen, pick) {
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

// One metric per architecture with its interval, and two metrics against each other.
const SCATTER = { left: 74, right: 20, top: 16, below: 42, dot: 6, names: 12, wide: 12 };
const FORMS = {
  duration, count, flops: flopCount, size: byteSize, flop_rate: flopRate, intensity: intensityWords, rate: (value) => rate(value, "samples"),
};
const metricWords = (metric, i) => FORMS[metric.form](metric.values[i]);
const boundsOf = (metric, i) => {
  const bounds = metric.bounds?.map((side) => side[i]);
  return bounds?.every((bound) => bound != null) ? bounds : null;
};

function architectureMetrics(data) {
  const entries = data.metrics.map((metric, at) => [at, metric.word, metric.values.every((value) => value == null)]);
  const known = entries.filter(([, , missing]) => !missing).map(([at]) => at);
  const find = (key) => known.find((at) => data.metrics[at].key === key);
  const state = { first: find("median_ms") ?? known[0] ?? 0, second: find("step_flops") ?? find("parameters") ?? known[0] ?? 0 };
  const table = h("div");
  const plot = h("div", { class: "pf-plane" });
  const tip = h("p", { class: "pf-tip", role: "status" });
  const choose = (i) => tip.replaceChildren(...dotWords(data, state, i));
  const refit = drawnToFit(plot, (width) => plot.replaceChildren(metricScatter(data, state, width, choose)));
  const update = () => {
    table.replaceChildren(metricTable(data, data.metrics[state.first]));
    refit();
    choose(-1);
  };
  const pick = (key) => (at) => {
    state[key] = at;
    update();
  };
  const element = h("div", { class: "pf-beside pf-even" },
    h("section", { "aria-label": "One metric" }, h("div", { class: "pf-toolbar" },
      h("h3", {}, h("label", {}, "Metric ", picker("Metric", entries, state.first, pick("first"))))), table),
    h("section", { "aria-label": "Two metrics" }, h("div", { class: "pf-toolbar" },
      h("h3", {}, h("label", {}, "Against ", picker("Second metric", entries, state.second, pick("second"))))), plot, tip));
  update();
  return element;
}

// One row per architecture: the bar starts at zero, the line on it is the interval.
function metricTable(data, metric) {
  const most = Math.max(1e-300, ...data.names.map((_, i) => boundsOf(metric, i)?.[1] ?? metric.values[i] ?? 0));
  const part = (value) => `${Math.min(100, Math.max(0, (100 * value) / most))}%`;
  return h("table", { class: "pf-metric", "aria-label": metric.word }, h("colgroup", {}, [`width:${namesWidth(data, 660) + 10}px`, "", "width:164px"].map((style) => h("col", { style }))),
    h("tbody", {}, data.names.map((name, i) => {
      const [value, bounds] = [metric.values[i], boundsOf(metric, i)];
      const said = bounds && metric.form === "duration" ? intervalBounds(value, bounds) : null;
      return h("tr", {}, h("th", { scope: "row", class: "pf-text" }, h("span", { class: "pf-name", title: name }, name)),
        h("td", { "aria-hidden": "true" }, value == null ? null : h("div", { class: "pf-amount-bar" }, h("i", { style: `width:${part(value)}` }),
          bounds && h("s", { style: `left:${part(bounds[0])};right:calc(100% - ${part(bounds[1])})` }))),
        h("td", { class: "pf-text" }, figure(metricWords(metric, i)), said && h("span", { class: "pf-quiet", title: "95 % confidence interval" }, ` ${said}`)));
    })));
}

// From values to positions: logarithmic if they differ much, else linear from zero.
function metricAxis(metric, from, to) {
  const values = metric.values.filter((value) => value != null);
  const most = Math.max(...values, ...values.map((_, i) => boundsOf(metric, i)?.[1] ?? 0));
  const least = Math.min(...values);
  const base = metric.form === "size" ? 1024 : 10;
  const text = (value) => (base === 1024 ? roundSize(value, most) : roundNumber(FORMS[metric.form](value)));
  if (least > 0 && most / least >= SCATTER.wide) {
    const unit = base === 1024 ? 1024 ** Math.floor(Math.log2(most) / 10) : 1;
    const [low, high] = [Math.log10(least / unit) - 0.15, Math.log10(most / unit) + 0.15];
    return {
      place: (value) => from + ((to - from) * (Math.log10(value / unit) - low)) / (high - low), words: `${metric.word}, logarithmic`,
      ticks: logTicks(low, high, (value) => text(value * unit)).map(([value, words]) => [value * unit, words]),
    };
  }
  const end = 1.08 * (most || 1);
  return {
    place: (value) => from + ((to - from) * value) / end, words: metric.word,
    ticks: niceTicks(end, 4, base).map((value) => [value, value ? text(value) : "0"]),
  };
}

function metricScatter(data, state, width, choose) {
  const [across, up] = [data.metrics[state.second], data.metrics[state.first]];
  const on = data.names.map((_, i) => i).filter((i) => across.values[i] != null && up.values[i] != null);
  if (!on.length) return h("p", { class: "pf-quiet pf-empty" }, "No architecture has both metrics.");
  const { left, right, top, below, dot } = SCATTER;
  const height = Math.max(140, Math.min(240, 30 * data.names.length - 40));
  const [x1, y0] = [width - right, top + height];
  const [x, y] = [metricAxis(across, left, x1), metricAxis(up, y0, top)];
  const at = (i) => [x.place(across.values[i]), y.place(up.values[i])];
  const inside = (place, from, to) => Math.min(Math.max(place, Math.min(from, to)), Math.max(from, to));
  const whisker = (metric, i, line) => boundsOf(metric, i) && drawn("line", { class: "pf-whisker", ...line(boundsOf(metric, i)) });
  const element = drawn("svg", { width, height: y0 + below, role: "group", "aria-label": `${up.word} against ${across.word}` },
    uprightRules(x.ticks, x.place, [top, y0], 16), levelRules(y.ticks, y.place, [left, x1]),
    drawn("text", { x: x1, y: y0 + 34, "text-anchor": "end" }, `${x.words} →`), drawn("text", { x: left, y: top - 4 }, `↑ ${y.words}`));
  for (const i of on) {
    const [cx, cy] = at(i);
    element.append(...[whisker(up, i, ([low, high]) => ({ x1: cx, x2: cx, y1: inside(y.place(low), top, y0), y2: inside(y.place(high), top, y0) })),
      whisker(across, i, ([low, high]) => ({ y1: cy, y2: cy, x1: inside(x.place(low), left, x1), x2: inside(x.place(high), left, x1) }))].filter(Boolean));
  }
  element.append(drawn("g", { class: "pf-points" }, on.map((i) => drawn("circle", {
    class: "pf-dot-compute", cx: at(i)[0], cy: at(i)[1], r: dot, tabindex: 0, role: "img", "data-point": i,
    "aria-label": `${data.names[i]}: ${up.word} ${metricWords(up, i)}, ${across.word} ${metricWords(across, i)}`,
    pointerenter: () => choose(i), focus: () => choose(i),
  }))), ...namesBeside(on.map((i) => ({ at: at(i), radius: dot, name: data.names[i] })), SCATTER.names, [left, x1, top]));
  return element;
}

function dotWords(data, state, i) {
  if (i < 0) return [h("span", { class: "pf-quiet" }, "Hover over a dot or focus it with the keyboard for its figures.")];
  const words = [state.first, state.second].map((at) => data.metrics[at]).map((metric) => {
    const bounds = metric.form === "duration" && boundsOf(metric, i);
    return `${metric.word} ${metricWords(metric, i)}${bounds ? ` ${intervalBounds(metric.values[i], bounds)}` : ""}`;
  });
  return [h("b", {}, data.names[i]), `: ${[...new Set(words)].join(", ")}`];
}

// The layers side by side: times on one scale, colours and patterns by kind of layer.
function architectureTrees(data) {
  const heaviest = Math.max(0, ...data.trees.flatMap((tree) => (tree ? tree.parent.map((parent, i) => (parent < 0 && i < tree.modules ? tree.total_ms[i] ?? 0 : 0)) : [])));
  const tip = h("p", { class: "pf-tip", role: "status" }, h("span", { class: "pf-quiet" }, "Select a layer for its figures. Up and down move between layers, right and left open and close them."));
  const panels = data.trees.map((tree, at) => treePanel(data, tree, at, heaviest, (words) => tip.replaceChildren(...words)));
  const open = (which) => panels.forEach(({ grid, ways }) => grid?.setOpen(ways[which]));
  const button = (word, title, which) => h("button", { type: "button", title, click: () => open(which) }, word);
  return h("section", { class: "pf-trees", "aria-label": "Layers side by side" },
    h("div", { class: "pf-toolbar" }, h("h3", {}, "Layers side by side"), h("span", { class: "pf-buttons" },
      button("Top levels", "Open the outermost layers, close the others", "top"), button("Heaviest paths", "Open the path to the heaviest layer of each", "heaviest"))),
    h("div", { class: "pf-forest" }, panels.map(({ element }) => element)), tip);
}

function treePanel(data, tree, at, heaviest, say) {
  const head = h("h4", {}, h("span", { class: "pf-name", title: data.names[at] }, data.names[at]), h("b", {}, figure(metricWords(data.metrics[0], at))));
  if (!tree) return { element: h("div", { class: "pf-tree" }, head, h("p", { class: "pf-quiet" }, `${UNKNOWN}: its layers were not measured`)) };
  const facts = layerFacts({ layers: tree });
  const grid = new Grid({
    label: `Layers of ${data.names[at]}`, columns: treeColumns(data, tree, facts, heaviest),
    rows: { parent: tree.parent, words: (i) => tree.label[i], pinned: facts.special }, onSelect: (i) => say(nodeWords(data, tree, facts, at, i)),
    rowClass: facts.rowClass,
  });
  const ways = openWays(tree, grid, facts);
  grid.setOpen(ways.top);
  return { element: h("div", { class: "pf-tree" }, head, grid.element), grid, ways };
}

// What to open: the outermost layers, skipping those with a single child, and the path to the heaviest.
function openWays(tree, grid, facts) {
  const roots = grid.roots.filter((i) => !facts.special(i));
  const top = [...roots];
  if (roots.length === 1) for (let [inside] = [grid.children[roots[0]]]; inside.length === 1; inside = grid.children[inside[0]]) top.push(inside[0]);
  const heaviest = [];
  const heavier = (a, b) => ((tree.total_ms[b] ?? 0) > (tree.total_ms[a] ?? 0) ? b : a);
  for (let now = roots; now.length;) {
    const next = now.reduce(heavier);
    heaviest.push(next);
    now = grid.children[next];
  }
  return { top, heaviest };
}

function treeColumns(data, tree, facts, heaviest) {
  const kindOf = (i) => data.kinds[tree.kind[i]];
  const holds = new Set(tree.parent);
  const shownKind = (i) => (facts.special(i) || (holds.has(i) && kindOf(i)?.word === "other") ? null : kindOf(i));
  return [
    nameColumn("label", "Layer", "Sort by name; a third click restores the order of the model", (i) => tree.label[i], {
      draw: (i) => h("span", { class: "pf-name", title: [facts.title(i), tree.module[i], shownKind(i)?.word].filter(Boolean).join("\n") },
        shownKind(i) ? swatch(shownKind(i)) : null, tree.label[i]),
    }),
    {
      key: "bar", head: "", title: "Forward, backward and recompute time, relative to the slowest architecture", text: true, width: 64, drop: 1, value: (i) => -(tree.total_ms[i] ?? 0),
      draw: (i) => facts.bar(i, heaviest),
    },
    figureColumn(tree.total_ms, "total_ms", "Time", "Time in a traced step, layers inside included", duration, { width: 70 }),
    figureColumn(tree.share, "share", "Share", "Share of the step, layers inside included", share, { width: 58 }),
  ];
}

function nodeWords(data, tree, facts, at, i) {
  const kind = data.kinds[tree.kind[i]];
  const named = [tree.module[i], kind?.word].filter(Boolean).join(", ");
  const passes = DIRECTIONS.filter((pass) => tree[`${pass}_ms`][i] > 0).map((pass) => `${pass} ${duration(tree[`${pass}_ms`][i])}`);
  return [h("b", {}, facts.path(i)), ` in ${data.names[at]}${named ? ` (${named})` : ""}: ${duration(tree.total_ms[i])}, ${share(tree.share[i])} of the step`,
    passes.length ? `; ${passes.join(", ")}` : "", tree.self_ms[i] == null ? "" : `; ${duration(tree.self_ms[i])}`];
}

const MOST_PAIRS = 6;

function architecturesView(data) {
  const size = data.names.length;
  return h("article", { class: "perfnb", "aria-label": `Comparison of ${data.names.join(", ")}` }, h("div", { class: "pf-view pf-compare" },
    h("header", {}, titled(size === 1 ? "1 architecture" : `${size} architectures compared`, data.facts.join(" · "))),
    h("div", { class: "pf-beside" }, architectureShares(data), architectureRatios(data)),
    architectureMetrics(data), architectureTrees(data), notesSection(data.notes)));
}

// Each pair as a sentence, the largest differences first; further pairs on demand.
function architectureRatios(data) {
  const far = ({ ratio }) => (ratio > 0 ? Math.abs(Math.log(ratio)) : -1);
  const sorted = data.ratios.length > MOST_PAIRS ? [...data.ratios].sort((a, b) => far(b) - far(a)) : data.ratios;
  const list = h("ul", { class: "pf-pairs" }, sorted.map(({ words: [before, figures, after], told, p, detectable }, at) => h("li", {
    hidden: at >= MOST_PAIRS, class: told ? "" : "pf-not-told", title: [p == null ? null : `p = ${significant(p)}`,
      detectable == null ? null : `Smallest difference that these measurements can detect: ${share(detectable)}`].filter(Boolean).join("\n"),
  }, `${before} `, h("b", {}, figures), ` ${after}`)));
  const show = (open) => [...list.children].forEach((item, at) => item.toggleAttribute("hidden", !open && at >= MOST_PAIRS));
  const more = sorted.length > MOST_PAIRS && moreButton(`All ${sorted.length} pairs`, "Fewer pairs", show);
  return h("section", { "aria-label": "Pair by pair" }, h("div", { class: "pf-toolbar" }, h("h3", {}, "Pair by pair")),
    sorted.length ? [list, more, h("p", { class: "pf-quiet pf-rule-words" }, data.rule)] : h("p", { class: "pf-quiet" }, "Nothing to compare."));
}

const architectures = widgetOf(architecturesView);
export default architectures;
