// Try it: a finding's lever tried on the step, in the kernel that profiled it.
import { figure, h } from "../../draw/js/dom.js";
import { duration, share } from "../../draw/js/format.js";

// What was tried, as the kernel tells it, drawn again at each change. Only a kernel that still has the step makes it
// ready; a saved or exported report never is.
export function triesOf(model, draw) {
  const tries = { ready: false, asked: null, count: 0, running: null, answers: {} };
  const take = () => {
    Object.assign(tries, JSON.parse(model.get("tried") || "{}"), { asked: null });
    draw(tries);
  };
  tries.press = (lever) => {
    tries.asked = lever;
    model.send({ try: lever, after: tries.count });
    draw(tries);
  };
  model.on?.("change:tried", take);
  model.on?.("msg:custom", (content) => {
    if (content?.try !== "ready") return;
    tries.ready = true;
    draw(tries);
  });
  take();
  model.send?.({ try: null });
}

function pressButton(word, lever, tries, busy) {
  return h("button", { type: "button", class: "pf-try", disabled: busy, click: () => tries.press(lever) }, word);
}

// One bar of the comparison: what could be saved, or what was, with its interval as a line.
function savedRow(word, part, between, full, words, kind) {
  const at = (value) => `${(100 * Math.max(0, Math.min(1, value / full))).toFixed(2)}%`;
  const line = between && h("i", { class: "pf-between", style: `left:${at(between[0])};right:calc(100% - ${at(between[1])})` });
  return h("div", {}, h("dt", {}, word),
    h("dd", {}, h("span", { class: "pf-track", "aria-hidden": "true" }, h("i", { class: kind, style: `width:${at(part)}` }), line), h("span", {}, words)));
}

// The bound of a finding and what its lever saved, side by side.
function comparison(finding, answer) {
  if (finding.bound_share == null || answer.share == null) return null;
  const full = Math.max(finding.bound_share, answer.share, ...(answer.shares ?? []), 0.001);
  const saved = answer.saves ? [figure(answer.saves), h("span", { class: "pf-quiet" }, ` ${share(answer.share)}`)] : [h("span", { class: "pf-quiet" }, answer.clear ? "nothing" : "unclear")];
  const beyond = answer.shares?.[0] > finding.bound_share && h("p", { class: "pf-quiet" }, "It saves more than the finding's bound. Profile again if the machine was busy; otherwise the bound is too low.");
  return [h("dl", { class: "pf-compared" },
    savedRow("Could save", finding.bound_share, null, full, [h("span", { class: "pf-quiet" }, "up to "), figure(duration(finding.bound_ms)), h("span", { class: "pf-quiet" }, ` ${share(finding.bound_share)}`)], "pf-could"),
    savedRow("Saves", answer.share, answer.shares, full, saved, "pf-did")), beyond];
}

function answerOf(finding, answer, tries, advice, busy) {
  const again = tries.ready && pressButton("Try again", finding.remedy, tries, busy);
  if (answer.error) return [h("p", { class: "pf-failed", role: "status" }, answer.error), ...advice(finding), again];
  return [
    h("section", { class: "pf-tried", "aria-label": `Tried ${finding.remedy}` },
      h("p", { class: "pf-said", role: "status" }, answer.said),
      comparison(finding, answer),
      h("dl", { class: "pf-tried-facts" }, answer.facts.map(([head, words]) => h("div", {}, h("dt", {}, head), h("dd", {}, words)))),
      answer.code && h("p", {}, "Keep it with"),
      answer.code && h("pre", { class: "pf-code" }, h("code", {}, answer.code)),
      again),
    answer.keep ? null : h("p", { class: "pf-quiet" }, h("b", {}, "Advice "), finding.advice),
  ];
}

function progressOf(tries) {
  const words = tries.asked ? "waiting for the kernel" : tries.words;
  const bar = h("progress", tries.total ? { value: String(tries.done), max: String(tries.total), "aria-label": "Progress" } : { "aria-label": "Progress" });
  return h("div", { class: "pf-trying" }, bar, h("span", { role: "status" }, words), h("span", { class: "pf-quiet" }, "Interrupt the kernel to stop."));
}

// What stands in a finding where its advice was: advice and button, progress, or the answer.
export function trial(finding, tries, advice) {
  const lever = finding.remedy;
  const running = tries.ready && (tries.asked ?? tries.running);
  if (running === lever) return [...advice(finding), progressOf(tries)];
  const answer = tries.answers[lever];
  if (answer) return answerOf(finding, answer, tries, advice, Boolean(running)).filter(Boolean);
  if (tries.ready) {
    const about = `Runs the step with and without ${lever}, checks its results, and puts everything back.`;
    return [...advice(finding), h("p", { class: "pf-offer" }, pressButton("Try it", lever, tries, Boolean(running)), h("span", { class: "pf-quiet" }, about))].filter(Boolean);
  }
  const [words, code] = finding.trial;
  return [...advice(finding), code && h("p", {}, words), code && h("pre", { class: "pf-code" }, h("code", {}, code))].filter(Boolean);
}
