// Scales and line styles of a chart of readings.
// Dashes for round ends, which make each dash longer by the line width.
import { drawn, niceTicks, roundNumber, roundSize } from "../../draw/js/chart.js";
import { reading } from "../../draw/js/format.js";

const LINE_DASHES = [null, "6 6", "0.1 5", "9 5 0.1 5", "14 6", "2.5 5", "6 5 0.1 5 0.1 5", "0.1 8"];
const LEAST_TOP = { percent: 100, bytes: 1024 ** 2, bytes_per_s: 1024, watts: 10, celsius: 50, megahertz: 100 };

// Each device has its own shade and dash; further lines of a device differ by dash.
export function lineLook(line, chart) {
  const place = chart.lines.filter(({ device }) => device === line.device).indexOf(line);
  if (line.device === "process") return { shade: "process", dash: place ? "12 5" : null, width: place ? 1.5 : 2.2 };
  if (line.device === "host") return { shade: "host", dash: place ? "5 4.5 0.1 4.5" : "4.5 4.5", width: 1.6 };
  if (line.device === "cgroup") return { shade: "cgroup", dash: "0.1 4.5", width: 2.2 };
  const gpu = Number(line.device.replace("gpu", "")) || 0;
  return { shade: `gpu${gpu % 4}`, dash: LINE_DASHES[chart.lines.indexOf(line) % LINE_DASHES.length], width: 2 };
}

export const lineProps = ({ shade, dash, width }) => ({ class: `pf-watch-line pf-watch-${shade}`, "stroke-dasharray": dash, "stroke-width": width });

export const lineKey = (look) => drawn("svg", { width: 20, height: 8, class: "pf-watch-key", "aria-hidden": "true" },
  drawn("line", { x1: 1, x2: 19, y1: 4, y2: 4, ...lineProps(look) }));

// A round top for an axis, and its ticks. The ceiling is on the axis if the lines come near.
export function valueAxis(chart, most) {
  const base = chart.unit.startsWith("bytes") ? 1024 : 10;
  const near = chart.ceiling != null && most >= 0.6 * chart.ceiling;
  const wanted = Math.max(LEAST_TOP[chart.unit] ?? 1, most, near ? chart.ceiling : 0);
  const step = niceTicks(wanted, 4, base)[1] ?? wanted;
  const top = near ? Math.max(1.06 * chart.ceiling, 1.02 * most) : step * Math.ceil(wanted / step - 1e-9);
  return { top, near, ticks: Array.from({ length: Math.floor(top / step + 1e-9) + 1 }, (_, i) => i * step) };
}

export function tickWords(value, top, unit) {
  if (unit.startsWith("bytes")) return value ? `${roundSize(value, top)}${unit === "bytes" ? "" : "/s"}` : "0";
  return value ? roundNumber(reading(value, unit)) : "0";
}

const TIME_STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400];

// The ticks of a time axis, and how many decimals of a second they need.
export function clockTicks(from, to, wanted) {
  const rough = (to - from) / wanted;
  const step = TIME_STEPS.find((one) => one >= rough) ?? 86400 * Math.ceil(rough / 86400);
  const ticks = [];
  for (let i = Math.ceil(from / step - 1e-6); i * step <= to + 1e-9 * step && ticks.length < 50; i += 1) ticks.push(i * step);
  return { ticks, decimals: step < 1 ? Math.ceil(-Math.log10(step) - 1e-9) : 0 };
}

// The visible points of a line, and one more on either side.
function inSight(own, from, to) {
  return [Math.max(0, own.before(from)), Math.min(own.size, own.before(to) + 2)];
}

export function mostOf(own, column, from, to) {
  const values = own.values.get(column);
  const [start, end] = inSight(own, from, to);
  let most = 0;
  for (let i = start; i < end; i += 1) if (values[i] > most) most = values[i];
  return most;
}

// A line as a path, broken at missing readings, with dots for isolated ones. Many points in one column of pixels become
// the lowest and the highest.
export function linePath(own, column, [from, to], x, y) {
  const values = own.values.get(column);
  const [start, end] = inSight(own, from, to);
  const parts = [];
  let [open, alone, pixel] = [false, false, null];
  const point = (i) => {
    parts.push(`${open ? "L" : "M"}${x(own.t[i]).toFixed(1)},${y(values[i]).toFixed(1)}`);
    alone = !open;
    open = true;
  };
  const flush = () => {
    if (!pixel) return;
    const [low, high] = pixel.low < pixel.high ? [pixel.low, pixel.high] : [pixel.high, pixel.low];
    point(low);
    if (high !== low) point(high);
    pixel = null;
  };
  const lift = () => {
    flush();
    if (alone) parts.push("h0.01");
    [open, alone] = [false, false];
  };
  for (let i = start; i < end; i += 1) {
    if (own.broken[i]) lift();
    if (Number.isNaN(values[i])) {
      lift();
      continue;
    }
    const at = Math.round(x(own.t[i]));
    if (pixel?.at !== at) {
      flush();
      pixel = { at, low: i, high: i };
    } else {
      if (values[i] < values[pixel.low]) pixel.low = i;
      if (values[i] > values[pixel.high]) pixel.high = i;
    }
  }
  lift();
  return parts.join("");
}

// A pool of elements of one kind, so that nothing flickers.
export function pool(parent, make) {
  const made = [];
  return (count, set) => {
    while (made.length < count) {
      made.push(make());
      parent.append(made.at(-1));
    }
    made.forEach((element, i) => {
      element.style.display = i < count ? "" : "none";
      if (i < count) set(element, i);
    });
  };
}

export function put(element, props) {
  for (const [key, value] of Object.entries(props)) {
    const text = String(value);
    if (element.getAttribute(key) !== text) element.setAttribute(key, text);
  }
}

export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
