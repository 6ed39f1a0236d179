// The report: headline, phases, tabs, notes.
import { litBar } from "../../draw/js/chart.js";
import { drawn, fact, figure, h, notesSection, titled } from "../../draw/js/dom.js";
import { duration, grouped, intervalBounds, rate, share, significant } from "../../draw/js/format.js";
import { widgetOf } from "../../draw/js/notebook.js";
import { tabMakers, tabs } from "../../draw/js/tabs.js";
import { layerFacts } from "./layers.js";

function headline(data, verdict) {
  const { step } = data;
  const runs = step.executed.filter(([, times]) => times > 0);
  const total = runs.reduce((sum, [, times]) => sum + times, 0);
  const bounds = step.ci_ms && h("span", { class: "pf-interval", title: "95 % confidence interval of the median" },
    intervalBounds(step.median_ms, step.ci_ms));
  const basis = data.source != null ? "a trace has no timed steps" : step.basis;
  return h("header", {},
    titled(data.name, data.device), verdict,
    h("dl", { class: "pf-facts" },
      h("div", { class: "pf-main" }, h("dt", {}, (step.inference ? "Inference step" : "Step") + (step.by_batch ? " (per batch)" : "")),
        h("dd", {}, h("div", { class: "pf-line" }, h("b", {}, figure(duration(step.median_ms))), bounds, stepDots(step)),
          h("small", {}, basis))),
      step.throughput_per_s == null ? null
        : fact("Throughput", figure(rate(step.throughput_per_s, "samples")), step.batch_size == null ? "batch size varies" : `batch of ${grouped(step.batch_size)}`),
      step.tokens_per_s == null ? null : fact("Tokens", figure(rate(step.tokens_per_s, "tokens")), "token ids of the input"),
      step.mfu == null ? null : fact("MFU", figure(share(step.mfu)), step.mfu_of),
      fact("Traced step", figure(duration(step.traced_ms)),
        step.traced_ms == null ? "none"
          : step.until_gpu_ms != null ? `GPU work continues after it: findings use ${duration(step.until_gpu_ms)}, until the GPU is done`
          : step.slowdown == null ? "" : `${significant(step.slowdown)} × the timed step`),
      data.source != null ? fact("Read from", data.source, total === 1 ? "1 step" : `${grouped(total)} steps`)
        : fact("Executed", total ? `${grouped(total)} ×` : "never", runs.map(([word, times]) => `${times} ${word}`).join(", "))));
}

// Each timed step as a dot in execution order, so that drift and outliers show.
function stepDots(step) {
  const samples = step.samples_ms.filter((ms) => ms != null);
  if (samples.length < 3) return null;
  const [low, high] = [Math.min(...samples), Math.max(...samples)];
  const y = (ms) => 26 - (24 * (ms - low)) / (high - low || 1) - 1;
  const words = `The timed steps in order, from ${duration(low)} to ${duration(high)}`;
  const band = step.ci_ms && drawn("rect", { x: 0, width: 104, y: y(step.ci_ms[1]), height: Math.max(1, y(step.ci_ms[0]) - y(step.ci_ms[1])), class: "pf-band" });
  return drawn("svg", { viewBox: "0 0 104 28", width: 104, height: 28, class: "pf-dots-plot", role: "img", "aria-label": words },
    drawn("title", {}, words), band, samples.map((ms, i) => drawn("circle", { cx: 3 + (98 * i) / (samples.length - 1), cy: y(ms), r: 1.6 })));
}

function phaseBar(data) {
  const parts = data.phases.filter((phase) => phase.ms > 0).map((phase) => ({ ...phase, part: phase.share }));
  const whole = parts.reduce((sum, { part }) => sum + Math.max(0, part ?? 0), 0) || 1;
  return parts.length ? h("section", { "aria-label": "Phases" }, litBar("Phases of a traced step", parts, whole)) : null;
}

function reportView(data, model) {
  const titles = data.tabs.filter(([key]) => key !== "timeline" || model.get("timeline")?.byteLength > 0);
  const made = {};
  const has = (key) => titles.some(([one]) => one === key);
  const go = (key, what) => {
    views.show(key);
    made[key].reveal(what);
  };
  const facts = layerFacts(data);
  for (const [key, title] of titles) made[key] = { ...tabMakers[key]({ data, model, facts, has, go }), key, title };
  const views = tabs("Tables", Object.values(made));
  return h("article", { class: "perfnb", "aria-label": `Profile ${data.name}` },
    headline(data, Object.values(made).map((tab) => tab.headline)), phaseBar(data), views.list, views.panels, notesSection(data.notes));
}

const report = widgetOf(reportView);
export default report;
