// Try it: try a finding's lever on the step, in the kernel that profiled it.
import { cardTools } from "../../draw/js/document.js";
import { codeBlock, factRows, h, holdsFocus } from "../../draw/js/dom.js";
import { inUnit } from "../../draw/js/format.js";
import { effects } from "../../draw/js/plots.js";

const triesByModel = new WeakMap();

// Returns the state of a model's trials, as reported by the kernel, and redraws them after each change. The state becomes
// ready only if the kernel still has the step, so it never does in a saved or exported report.
function triesOf(model) {
  if (triesByModel.has(model)) return triesByModel.get(model);
  const tries = { ready: false, asked: null, count: 0, running: null, answers: {}, drawers: [] };
  triesByModel.set(model, tries);
  const change = (changes) => {
    Object.assign(tries, changes);
    tries.drawers.forEach((draw) => draw());
  };
  tries.press = (lever) => {
    model.send({ try: lever, after: tries.count });
    change({ asked: lever });
  };
  tries.stop = () => model.send({ stop: true });
  const take = () => change({ ...JSON.parse(model.get("tried") || "{}"), asked: null });
  model.on?.("change:tried", take);
  model.on?.("msg:custom", (content) => content?.try === "ready" && change({ ready: true }));
  take();
  model.send?.({ try: null });
  return tries;
}

// Shows the lever's effect below the maximum saving of its finding.
function comparison({ share, bound }, { effect }) {
  if (share == null || effect.ratio == null) return null;
  const best = { label: "Could save", ratio: 1 - share, words: inUnit(1 - share, "ratio"), verdict: bound };
  const beyond = effect.interval && 1 - effect.interval[1] > share && h("p", { class: "pf-quiet" }, "It saves more than the finding's bound. Profile again if the machine was busy; otherwise the bound is too low.");
  return [effects({ title: "Time of the step", head: "", rows: [best, effect] }), beyond];
}

function answerOf(card, answer, advice, again) {
  if (answer.error) return [h("p", { class: "pf-failed", role: "status" }, answer.error), advice, again];
  return [
    h("section", { class: "pf-tried", "aria-label": `Tried ${card.lever}` },
      h("p", { class: "pf-said", role: "status" }, answer.said), comparison(card, answer), factRows(answer.facts),
      answer.code && [h("p", {}, "Keep it with"), codeBlock(answer.code)], again),
    !answer.keep && h("p", { class: "pf-quiet" }, h("b", {}, "Advice "), card.advice),
  ];
}

function progressOf({ asked, words, done, total, stop }) {
  return h("div", { class: "pf-trying" }, h("progress", { value: total ? String(done) : null, max: total ? String(total) : null, "aria-label": "Progress" }),
    h("span", { role: "status" }, asked ? "waiting for the kernel" : words),
    h("button", { type: "button", class: "pf-try", title: "If this frontend delivers messages only after a cell ends, interrupt the kernel instead", click: stop }, "Stop"));
}

// The content of a finding's card: the advice and a button, the progress, or the answer.
function trialOf(card, tries, advice, line) {
  const { lever } = card;
  const running = tries.ready && (tries.asked ?? tries.running);
  const button = (word) => h("button", { type: "button", class: "pf-try", disabled: Boolean(running), click: () => tries.press(lever) }, word);
  if (running === lever) return [advice, progressOf(tries)];
  if (tries.answers[lever]) return answerOf(card, tries.answers[lever], advice, tries.ready && button("Try again"));
  if (!tries.ready) return [advice, line];
  return [advice, h("p", { class: "pf-offer" }, button("Try it"), h("span", { class: "pf-quiet" }, `Runs the step with and without ${lever}, checks its results, and puts everything back.`))];
}

cardTools.advice = ({ card, cure, element, advice, trial, model }) => {
  const tries = triesOf(model);
  const draw = () => {
    const held = holdsFocus(cure);
    cure.replaceChildren(h("div", {}, trialOf(card, tries, advice, trial)));
    if (held) element.focus({ preventScroll: true });
  };
  tries.drawers.push(draw);
  draw();
};
