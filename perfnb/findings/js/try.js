// Try it: try a finding's lever on the step, in the kernel that profiled it.
import { cardTools } from "../../draw/js/document.js";
import { codeBlock, factRows, h } from "../../draw/js/dom.js";
import { inUnit } from "../../draw/js/format.js";
import { effects } from "../../draw/js/plots.js";

const triesByModel = new WeakMap();

// Returns the state of a model's trials, as reported by the kernel, and redraws them after each change. The state becomes
// ready only if the kernel still has the step, so it never does in a saved or exported report.
function triesOf(model) {
  if (triesByModel.has(model)) return triesByModel.get(model);
  const tries = { ready: false, asked: null, count: 0, running: null, answers: {}, drawers: [] };
  triesByModel.set(model, tries);
  const draw = () => tries.drawers.forEach((drawer) => drawer(tries));
  const take = () => {
    Object.assign(tries, JSON.parse(model.get("tried") || "{}"), { asked: null });
    draw();
  };
  tries.press = (lever) => {
    tries.asked = lever;
    model.send({ try: lever, after: tries.count });
    draw();
  };
  tries.stop = () => model.send({ stop: true });
  model.on?.("change:tried", take);
  model.on?.("msg:custom", (content) => {
    if (content?.try !== "ready") return;
    tries.ready = true;
    draw();
  });
  take();
  model.send?.({ try: null });
  return tries;
}

function pressButton(word, lever, tries, busy) {
  return h("button", { type: "button", class: "pf-try", disabled: busy, click: () => tries.press(lever) }, word);
}

// Shows the lever's effect below the maximum saving of its finding.
function comparison(card, { effect }) {
  if (card.share == null || effect.ratio == null) return null;
  const best = { label: "Could save", ratio: 1 - card.share, words: inUnit(1 - card.share, "ratio"), verdict: card.bound };
  const beyond = effect.interval && 1 - effect.interval[1] > card.share && h("p", { class: "pf-quiet" }, "It saves more than the finding's bound. Profile again if the machine was busy; otherwise the bound is too low.");
  return [effects({ title: "Time of the step", head: "", rows: [best, effect] }), beyond];
}

function answerOf(card, answer, tries, advice, busy) {
  const again = tries.ready && pressButton("Try again", card.lever, tries, busy);
  if (answer.error) return [h("p", { class: "pf-failed", role: "status" }, answer.error), ...advice(), again];
  return [
    h("section", { class: "pf-tried", "aria-label": `Tried ${card.lever}` },
      h("p", { class: "pf-said", role: "status" }, answer.said),
      comparison(card, answer),
      factRows(answer.facts),
      answer.code && h("p", {}, "Keep it with"),
      answer.code && codeBlock(answer.code),
      again),
    answer.keep ? null : h("p", { class: "pf-quiet" }, h("b", {}, "Advice "), card.advice),
  ];
}

function progressOf(tries) {
  const words = tries.asked ? "waiting for the kernel" : tries.words;
  const bar = h("progress", tries.total ? { value: String(tries.done), max: String(tries.total), "aria-label": "Progress" } : { "aria-label": "Progress" });
  return h("div", { class: "pf-trying" }, bar, h("span", { role: "status" }, words), h("button", { type: "button", class: "pf-try", title: "If this frontend delivers messages only after a cell ends, interrupt the kernel instead", click: () => tries.stop() }, "Stop"));
}

// The content that replaces a finding's advice: the advice and a button, the progress, or the answer.
function trial(card, tries, advice, plainAdvice) {
  const lever = card.lever;
  const running = tries.ready && (tries.asked ?? tries.running);
  if (running === lever) return [...advice(), progressOf(tries)];
  const answer = tries.answers[lever];
  if (answer) return answerOf(card, answer, tries, advice, Boolean(running)).filter(Boolean);
  if (tries.ready) {
    const about = `Runs the step with and without ${lever}, checks its results, and puts everything back.`;
    return [...advice(), h("p", { class: "pf-offer" }, pressButton("Try it", lever, tries, Boolean(running)), h("span", { class: "pf-quiet" }, about))].filter(Boolean);
  }
  return plainAdvice();
}

cardTools.advice = ({ card, cure, element, advice, plainAdvice, model }) => {
  const tries = triesOf(model);
  const draw = () => {
    const held = cure.contains(cure.getRootNode().activeElement);
    cure.replaceChildren(...trial(card, tries, advice, plainAdvice));
    if (held) element.focus({ preventScroll: true });
  };
  tries.drawers.push(draw);
  draw();
};
