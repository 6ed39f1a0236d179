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

export function timeUnit(ms) {
  const magnitude = Math.abs(Number(ms.toPrecision(3)));
  if (magnitude >= 1000) return [1e-3, "s"];
  return magnitude > 0 && magnitude < 0.1 ? [1e3, "µs"] : [1, "ms"];
}

export function duration(ms) {
  if (ms == null) return UNKNOWN;
  const [factor, unit] = timeUnit(ms);
  return `${significant(ms * factor)} ${unit}`;
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
export const flopRate = (value) => (value == null ? UNKNOWN : `${flopCount(value)}/s`);

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

// Formats a telemetry reading in the unit of its chart.
export function reading(value, unit) {
  if (value == null) return UNKNOWN;
  if (unit === "percent") return share(value / 100);
  if (unit === "bytes") return byteSize(value);
  if (unit === "bytes_per_s") return `${byteSize(value)}/s`;
  return `${significant(value, true)} ${{ watts: "W", joules: "J", celsius: "°C", megahertz: "MHz" }[unit]}`;
}

const WRITTEN = {
  ms: duration, bytes: byteSize, share, flops: flopCount, count, number: (value) => significant(value),
  ratio: (value) => (value == null ? UNKNOWN : `${significant(value)} ×`),
  ...Object.fromEntries(["watts", "joules", "celsius", "megahertz"].map((unit) => [unit, (value) => reading(value, unit)])),
  "bytes/s": (value) => (value == null ? UNKNOWN : `${byteSize(value)}/s`), "flops/s": flopRate, "/s": (value) => rate(value, ""),
};

// Formats a number in one of the units of perfnb.draw.document.
export function inUnit(value, unit) {
  const written = WRITTEN[unit] ?? (unit.endsWith("/s") ? (number) => rate(number, unit.slice(0, -2)) : significant);
  return written(value).replace(/^-/, "−");
}
