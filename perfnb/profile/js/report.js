// The report: headline, phases, tabs, notes.
import { figure, h, titled } from "../../draw/js/dom.js";
import { duration, intervalBounds, rate, share, significant } from "../../draw/js/format.js";
import { settle } from "../../draw/js/notebook.js";
import { tabMakers, tabs } from "../../draw/js/tabs.js";
import { layerFacts } from "./layers.js";

function headline(data, verdict) {
  const { step } = data;
  const runs = step.executed.filter(([, times]) => times > 0);
  const total = runs.reduce((sum, [, times]) => sum + times, 0);
  const bounds = step.ci_ms && h("span", { class: "pf-interval", title: "95 % confidence interval of the median" },
    intervalBounds(step.median_ms, step.ci_ms));
  const basis = data.source != null ? "a trace has no timed steps" : step.basis;
  const fact = (word, value, more) => h("div", {}, h("dt", {}, word), h("dd", {}, h("b", {}, value), more ? h("small", {}, more) : null));
  return h("header", {},
    titled(data.name, data.device), verdict,
    h("dl", { class: "pf-facts" },
      h("div", { class: "pf-main" }, h("dt", {}, "Step"),
        h("dd", {}, h("div", { class: "pf-line" }, h("b", {}, figure(duration(step.median_ms))), bounds, stepDots(step)),
          h("small", {}, basis))),
      step.throughput_per_s == null ? null
        : fact("Throughput", figure(rate(step.throughput_per_s, "samples")), step.batch_size == null ? "batch size varies" : `batch of ${step.batch_size.toLocaleString("en-US")}`),
      fact("Traced step", figure(duration(step.traced_ms)),
        step.traced_ms == null ? "none"
          : step.until_gpu_ms != null ? `GPU work continues after it: findings use ${duration(step.until_gpu_ms)}, until the GPU is done`
          : step.slowdown == null ? "" : `${significant(step.slowdown)} × the timed step`),
      data.source != null ? fact("Read from", data.source, total === 1 ? "1 step" : `${total.toLocaleString("en-US")} steps`)
        : fact("Executed", total ? `${total.toLocaleString("en-US")} ×` : "never", runs.map(([word, times]) => `${times} ${word}`).join(", "))));
}

// Each timed step as a dot in execution order, so that drift and outliers show.
function stepDots(step) {
  const samples = step.samples_ms.filter((ms) => ms != null);
  if (samples.length < 3) return null;
  const [low, high] = [Math.min(...samples), Math.max(...samples)];
  const svg = (tag, props) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(props)) node.setAttribute(key, value);
    return node;
  };
  const y = (ms) => 26 - (24 * (ms - low)) / (high - low || 1) - 1;
  const picture = svg("svg", { viewBox: "0 0 104 28", width: 104, height: 28, class: "pf-dots-plot", role: "img",
    "aria-label": `The timed steps, from ${duration(low)} to ${duration(high)}` });
  const title = svg("title", {});
  title.textContent = `The timed steps in order, from ${duration(low)} to ${duration(high)}`;
  picture.append(title);
  if (step.ci_ms) picture.append(svg("rect", { x: 0, width: 104, y: y(step.ci_ms[1]), height: Math.max(1, y(step.ci_ms[0]) - y(step.ci_ms[1])), class: "pf-band" }));
  samples.forEach((ms, i) => picture.append(svg("circle", { cx: 3 + (98 * i) / (samples.length - 1), cy: y(ms), r: 1.6 })));
  return picture;
}

function phaseBar(data) {
  const shown = data.phases.filter((phase) => phase.ms > 0);
  if (!shown.length) return null;
  const whole = shown.reduce((sum, phase) => sum + Math.max(0, phase.share ?? 0), 0) || 1;
  const words = shown.map((phase) => `${phase.word} ${duration(phase.ms)}, ${share(phase.share)}`);
  const light = (i, on) => [bar, legend].forEach((list) => list.children[i].classList.toggle("pf-lit", on));
  const hover = (i) => ({ pointerenter: () => light(i, true), pointerleave: () => light(i, false) });
  const fill = (phase) => `background-color:${phase.colour}`;
  const bar = h("div", { class: "pf-phases", role: "img", "aria-label": `Phases of a traced step: ${words.join("; ")}` },
    shown.map((phase, i) => h("i", {
      class: `pf-${phase.pattern}`, title: words[i], ...hover(i),
      style: `${fill(phase)};flex-grow:${Math.max(0, phase.share ?? 0) / whole}`,
    })));
  const legend = h("ul", { class: "pf-legend" }, shown.map((phase, i) => h("li", hover(i),
    h("i", { class: `pf-key pf-${phase.pattern}`, style: fill(phase), "aria-hidden": "true" }),
    h("span", { class: "pf-word" }, phase.word), h("b", {}, figure(share(phase.share))), h("span", { class: "pf-quiet" }, figure(duration(phase.ms))))));
  return h("section", { "aria-label": "Phases" }, bar, legend);
}

function render({ model, el }) {
  const data = JSON.parse(model.get("data"));
  const titles = data.tabs.filter(([key]) => key !== "timeline" || model.get("timeline")?.byteLength > 0);
  const made = {};
  const has = (key) => titles.some(([one]) => one === key);
  const go = (key, what) => {
    views.show(key);
    made[key].reveal(what);
  };
  const report = { data, model, facts: layerFacts(data), has, go };
  for (const [key, title] of titles) made[key] = { ...tabMakers[key](report), key, title };
  const views = tabs("Tables", Object.values(made));
  const notes = data.notes.length
    ? h("section", { class: "pf-notes" }, h("h3", {}, "Notes"), h("ul", {}, data.notes.map((note) => h("li", {}, note))))
    : null;
  const root = h("article", { class: "perfnb", "aria-label": `Profile ${data.name}` },
    headline(data, Object.values(made).map((tab) => tab.headline)), phaseBar(data), views.list, views.panels, notes);
  return settle(root, data.id, el);
}

const report = { render };
export default report;
