// The GPU tab: busy and idle time, critical path, launches, queue, kernels.
import { drawnToFit, levelRules, litBar, niceTicks, partFill, partWords, roundNumber, swatch } from "../../draw/js/chart.js";
import { drawn, figure, h, marked, stackedBar } from "../../draw/js/dom.js";
import { count, duration, grouped, share } from "../../draw/js/format.js";
import { figureColumn, nameColumn, searchGrid, smallTable } from "../../draw/js/grid.js";
import { pictures } from "../../draw/js/document.js";

const QUEUE = { left: 46, right: 14, top: 8, height: 84, below: 22 };

function gpuTab(data) {
  const charts = (data.queue?.devices ?? []).slice(0, 8).map(([word, means, longest]) => queueChart(data.queue, word, means, longest));
  const kernels = kernelTable(data);
  const element = h("div", { class: "pf-view pf-gpu" },
    h("p", { class: "pf-gpu-lead" }, data.headline),
    h("section", { "aria-label": "GPU time" }, data.devices.map((bar) => deviceBar(data, bar)), stepBars(data)),
    data.path && criticalPath(data.path),
    launchFacts(data),
    charts.length ? h("section", { "aria-label": "Queue" },
      h("h3", {}, "Queue"), h("p", { class: "pf-quiet" }, "Work launched but not yet started: the area is the mean over time, the line the maximum. An empty queue means that the GPU has nothing to do next."),
      charts.map((chart) => chart.element)) : null,
    kernels.element,
    data.notes.length ? h("ul", { class: "pf-gpu-notes" }, data.notes.map((note) => h("li", {}, note))) : null);
  return { element, shown: () => {
    kernels.grid.fit();
    for (const chart of charts) chart.refit();
  } };
}

function deviceBar(data, bar) {
  const parts = data.marks.map((mark, i) => ({ ...mark, ms: bar.parts[i], part: bar.parts[i] / bar.total_ms }));
  const hidden = bar.overlap_ms > 0 ? h("p", { class: "pf-quiet" }, `Another ${duration(bar.overlap_ms)} of communication overlapped computation and is counted as computation.`) : null;
  return h("div", { class: "pf-gpu-device" },
    h("h3", {}, `${bar.word}, whole trace`, h("span", { class: "pf-quiet" }, ` ${duration(bar.total_ms)}`)), litBar(bar.word, parts), hidden);
}

// The same for each step, to one scale.
function stepBars({ steps, marks, steps_in_all: all }) {
  if (!steps.length) return null;
  const longest = Math.max(...steps.map((step) => step.total_ms));
  const words = ({ parts, total_ms: total }) => marks.map((mark, i) => parts[i] > 0 && partWords({ ...mark, ms: parts[i], part: parts[i] / total })).filter(Boolean).join("; ");
  const left = all - new Set(steps.map((step) => step.word.split(",")[0])).size;
  return h("div", { class: "pf-gpu-steps" }, h("h3", {}, "By step"),
    steps.map((step) => h("div", { class: "pf-gpu-step" }, h("span", {}, step.word),
      h("div", {}, h("div", { class: "pf-gpu-bar", role: "img", "aria-label": `${step.word}: ${words(step)}`, style: `width:${(100 * step.total_ms) / longest}%` },
        step.parts.map((ms, i) => (ms > 0 ? partFill({ ...marks[i], ms, part: ms / step.total_ms }) : null)))),
      h("span", { class: "pf-gpu-total" }, figure(duration(step.total_ms))))),
    h("p", { class: "pf-quiet" }, "From the start of the first to the end of the last GPU work that a step launched; idle time between steps is not included."),
    left > 0 ? h("p", { class: "pf-quiet" }, `${grouped(left)} more steps not shown.`) : null);
}

function criticalPath(path) {
  const total = path.kinds.reduce((sum, kind) => sum + kind.ms, 0);
  const saves = h("span", { class: "pf-hint", title: path.saves_title }, "Saves up to");
  const heads = (word) => ({ words: [word, "Path", "Share", saves.cloneNode(true)], widths: [null, 86, 60, 118], text: 1 });
  const figures = (row) => [figure(duration(row.ms)), figure(share(row.share)), figure(duration(row.saves_ms))];
  const kinds = path.kinds.map((kind) => [h("span", { class: "pf-kind", title: kind.title }, swatch(kind), h("span", { class: "pf-name" }, kind.word)), ...figures(kind)]);
  const ops = path.ops.map((op) => [h("span", { class: "pf-name", title: op.word }, op.word), ...figures(op)]);
  return h("section", { "aria-label": "Critical path" }, h("h3", {}, path.title),
    h("p", { class: "pf-quiet" }, "The chain of host work, launches, GPU work and waits that determines the duration. Speeding up anything else saves nothing."),
    litBar("Critical path", path.kinds.map((kind) => ({ ...kind, part: kind.ms / total })))[0],
    h("div", { class: "pf-beside pf-gpu-path" }, smallTable("Critical path by kind", heads("Part"), kinds),
      ops.length ? smallTable("Critical path by op", heads("Op with its kernels"), ops) : null));
}

function launchFacts(data) {
  return h("section", { "aria-label": "Launches" }, h("h3", {}, "Launches"), h("p", {}, data.sentence),
    h("dl", { class: "pf-facts pf-gpu-facts" }, data.launches.map(([word, value, small, title]) => h("div", { title },
      h("dt", {}, h("span", { class: "pf-hint" }, word)), h("dd", {}, h("b", {}, figure(value)), h("small", {}, small))))));
}

// One, and round numbers near 1/9, 4/9 and all of the maximum: evenly spaced on a square-root scale.
function rootTicks(most) {
  const nice = (value) => [5, 2, 1].map((k) => k * 10 ** Math.floor(Math.log10(value))).find((round) => round <= value);
  return [...new Set([1, ...[most / 9, (4 * most) / 9, most].filter((value) => value >= 1).map(nice)])]
    .filter((value, i, all) => i === all.length - 1 || Math.sqrt(all[i + 1] / most) - Math.sqrt(value / most) > 0.15);
}

function queueChart({ start_ms: begin, piece_ms: piece, devices }, word, means, lengths) {
  const holder = h("div", { class: "pf-gpu-queue" });
  const most = Math.max(1, ...lengths);
  // Next to long queues, short ones would be invisible on a linear scale.
  const byRoots = most > 12;
  const end = begin + piece * lengths.length;
  const tip = h("span", { class: "pf-quiet", role: "status" });
  const rest = `${devices.length > 1 ? `${word}: ` : ""}${grouped(most)} at most${byRoots ? " (square-root scale)" : ""}; hover for the length over time`;
  tip.textContent = rest;
  const draw = (width) => {
    const { left, right, top, height, below } = QUEUE;
    const [x1, y0] = [width - right, top + height];
    const x = (ms) => left + ((x1 - left) * (ms - begin)) / (end - begin || 1);
    const y = (length) => y0 - height * (byRoots ? Math.sqrt(length / most) : length / most);
    const ticks = byRoots ? rootTicks(most) : niceTicks(most, 3).filter(Number.isInteger);
    const times = niceTicks(end - begin, Math.max(2, Math.floor(width / 150)));
    const line = (values) => values.map((value, i) => `H${x(begin + i * piece).toFixed(1)}V${y(value ?? 0).toFixed(1)}`).join("");
    const cursor = drawn("line", { class: "pf-axis", y1: top, y2: y0, visibility: "hidden" });
    const point = (event) => {
      const box = holder.getBoundingClientRect();
      const at = Math.floor(((event.clientX - box.left - left) / (x1 - left)) * lengths.length);
      const inside = at >= 0 && at < lengths.length;
      cursor.setAttribute("visibility", inside ? "visible" : "hidden");
      if (!inside) return (tip.textContent = rest);
      const place = x(begin + (at + 0.5) * piece);
      for (const side of ["x1", "x2"]) cursor.setAttribute(side, place);
      return (tip.textContent = `${devices.length > 1 ? `${word}: ` : ""}${count(means[at])} queued on average, ${grouped(lengths[at])} at most, ${roundNumber(duration(at * piece))} to ${roundNumber(duration((at + 1) * piece))} after the start`);
    };
    holder.replaceChildren(drawn("svg", { width, height: y0 + below, role: "img", "aria-label": `Length of the queue of ${word} over time, at most ${most}`,
      pointermove: point, pointerleave: () => point({ clientX: -1e9 }) },
    levelRules(ticks.map((value) => [value, grouped(value)]), y, [left, x1]),
    times.map((value, i) => drawn("text", { x: x(begin + value), y: y0 + 16, "text-anchor": i ? "middle" : "start" }, value ? roundNumber(duration(value)) : "0")),
    drawn("path", { class: "pf-gpu-area", d: `M${left},${y0}${line(means)}H${x1}V${y0}Z` }),
    drawn("path", { class: "pf-gpu-most", d: `M${left},${y0}${line(lengths)}H${x1}V${y0}` }), cursor));
  };
  const refit = drawnToFit(holder, draw);
  return { element: h("div", {}, h("p", { class: "pf-gpu-tip" }, tip), holder), refit };
}

function kernelTable(data) {
  const { kernels, names } = data;
  const text = (key, i, none = "") => names[kernels[key][i]] ?? none;
  const first = (i) => text("op", i) || text("kernel", i);
  const most = Math.max(0, ...kernels.total_ms.map((ms) => ms ?? 0));
  const known = (key) => kernels[key].some((place) => place >= 0);
  const named = (key, head, title, more, none) => known(key) && {
    key, head, title, text: true, value: (i) => text(key, i).toLowerCase(),
    draw: (i, query) => h("span", { class: kernels[key][i] < 0 ? "pf-quiet" : "pf-name", title: text(key, i) }, marked(text(key, i, none), query)), ...more,
  };
  const number = (key, ...rest) => figureColumn(kernels[key], key, ...rest);
  const columns = [
    nameColumn("op", known("op") ? "Op" : "Kernel", "The op that launched it, or the kernel if the op is unknown", first),
    named("shapes", "Shapes", "Input shapes of the op", { width: 210, drop: 5 }),
    known("op") && named("kernel", "Heaviest kernel", "The op's kernel with the most time", {
      width: 230, drop: 1, draw: (i, query) => (kernels.op[i] < 0 ? null : h("span", { class: "pf-name", title: text("kernel", i) }, marked(text("kernel", i), query))),
    }),
    number("calls", "Calls", "Kernels, copies and fills per step", count, { width: 62 }),
    { key: "bar", head: "Time", title: "Relative to the heaviest row", width: 90, drop: 4, text: true, value: (i) => -(kernels.total_ms[i] ?? 0),
      draw: (i) => stackedBar([[kernels.total_ms[i] ?? 0, "forward"]], most) },
    number("total_ms", "Total", "Sum of durations per step", duration, { width: 82 }),
    number("mean_us", "Mean", "Mean duration", (us) => duration(us == null ? null : us / 1e3), { width: 78, drop: 3 }),
    number("share", "Share", "Share of the total time of kernels, copies and fills", share, { width: 66 }),
    named("layers", "Layers", "Layers that launch it", { width: 220, drop: 2 }, "–"),
  ].filter(Boolean);
  const size = kernels.total_ms.length;
  const rows = { parent: kernels.total_ms.map(() => -1), words: (i) => ["op", "shapes", "kernel", "layers"].map((key) => text(key, i)).join("\n") };
  const left = data.kernels_in_all - size;
  const title = h("div", {}, h("h3", {}, "Kernels, copies and fills"),
    h("p", { class: "pf-quiet" }, `Per step, by op and input shapes, or by name if the op is unknown${left > 0 ? `; ${grouped(left)} lighter rows are not listed` : ""}.`));
  const { element, grid } = searchGrid({
    label: "Kernels", columns, rows, words: "Search kernels", size, noun: "rows", before: title,
    describe: (i) => [
      h("h3", {}, first(i)),
      kernels.shapes[i] >= 0 && h("p", {}, "Input shapes ", text("shapes", i)),
      kernels.kernel[i] >= 0 && h("p", {}, kernels.kernels[i] > 1 ? `Heaviest of ${kernels.kernels[i]} kernels: ` : "Kernel: ", h("bdi", {}, text("kernel", i))),
      kernels.layers[i] >= 0 && h("p", {}, "In ", h("bdi", {}, text("layers", i))),
    ],
  });
  return { element: h("section", { "aria-label": "Kernels" }, element), grid };
}

pictures.gpu = ({ data }) => ({ ...gpuTab(data), size: `${share(data.busy)} busy` });
