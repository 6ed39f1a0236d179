// Formats numbers according to the rules of perfnb.quantities.
export const UNKNOWN = "n/a";
export const NOT_MEASURED = "not measured in this run, or not applicable to this row";

export const grouped = (number) => number.toLocaleString("en-US");

export function significant(value, trim = false) {
  if (value == null || !Number.isFinite(value)) return UNKNOWN;
  const number = Number(value.toPrecision(3));
  if (number === 0) return "0";
  const exponent = Math.floor(Math.log10(Math.abs(number)) + 1e-12);
  if (exponent < -6 || exponent >= 15) return number.toExponential(2);
  const decimals = Math.max(0, 2 - exponent);
  return number.toLocaleString("en-US", { minimumFractionDigits: trim ? 0 : decimals, maximumFractionDigits: decimals });
}

export function duration(ms) {
  if (ms == null) return UNKNOWN;
  const magnitude = Math.abs(Number(ms.toPrecision(3)));
  if (magnitude >= 1000) return `${significant(ms / 1000)} s`;
  return magnitude > 0 && magnitude < 0.1 ? `${significant(1000 * ms)} µs` : `${significant(ms)} ms`;
}

function scaled(value, base, units) {
  let step = 0;
  const reached = () => (base === 1024 ? Math.abs(value) >= 1023.5 : Math.abs(Number(value.toPrecision(3))) >= base);
  while (step < units.length - 1 && reached()) {
    value /= base;
    step += 1;
  }
  return [significant(value, step === 0), units[step]];
}

const DECIMAL = ["", "k", "M", "G", "T", "P", "E"];

export const count = (value) => (value == null ? UNKNOWN : scaled(value, 1000, DECIMAL).join(" ").trimEnd());
export const byteSize = (value) => (value == null ? UNKNOWN : scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]).join(" "));
export const flopCount = (value) => (value == null ? UNKNOWN : `${scaled(value, 1000, DECIMAL).join(" ")}FLOP`);

export function rate(value, thing) {
  if (value == null) return UNKNOWN;
  const [number, prefix] = Math.abs(Number(value.toPrecision(3))) < 1e6
    ? [significant(value), ""]
    : scaled(value, 1000, DECIMAL);
  return `${number} ${`${prefix} ${thing}`.trim()}/s`;
}

export function share(fraction) {
  if (fraction == null) return UNKNOWN;
  const percent = 100 * fraction;
  if (percent === 0) return "0 %";
  if (percent > 0 && percent < 0.05) return "<0.1 %";
  const tenths = Math.round(percent * 10) / 10;
  return Math.abs(tenths) < 10 ? `${tenths.toFixed(1)} %` : `${significant(Math.round(percent), true)} %`;
}

// Formats the seconds since the start as a clock would show them: "0:42", "1:02:03".
export function clock(seconds, decimals = 0) {
  if (seconds == null) return UNKNOWN;
  const parts = 10 ** decimals;
  const ticks = Math.round(Math.abs(seconds) * parts);
  const whole = Math.floor(ticks / parts);
  const two = (number) => String(number).padStart(2, "0");
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  const fraction = decimals ? `.${String(ticks % parts).padStart(decimals, "0")}` : "";
  return `${seconds < 0 && ticks ? "-" : ""}${hours ? `${hours}:${two(minutes)}` : minutes}:${two(whole % 60)}${fraction}`;
}

const SYMBOLS = { watts: "W", joules: "J", celsius: "°C", megahertz: "MHz" };
const WRITTEN = { ms: duration, bytes: byteSize, share, flops: flopCount, count, ratio: (value) => `${significant(value)} ×` };

// Formats a number in one of the units of perfnb.draw.document.
export function inUnit(value, unit) {
  if (value == null) return UNKNOWN;
  const thing = unit.replace(/\/s$/, "");
  let text = thing === unit ? significant(value) : rate(value, thing);
  if (unit in SYMBOLS) text = `${significant(value, true)} ${SYMBOLS[unit]}`;
  else if (thing in WRITTEN) text = WRITTEN[thing](value) + unit.slice(thing.length);
  return text.replace(/^-/, "−");
}

// Formats a telemetry reading in the unit of its chart.
export const reading = (value, unit) => (unit === "percent" && value != null ? share(value / 100) : inUnit(value, unit.replace("_per_s", "/s")));
