// Who owns memory at the peak, and what would reduce it.
import { swatch } from "../../draw/js/chart.js";
import { columnHead, figure, h } from "../../draw/js/dom.js";
import { UNKNOWN, byteSize, count, share } from "../../draw/js/format.js";

const OWNERS_SHOWN = 10;

// If the step failed, the last instant is shown in place of the peak.
export const instantWord = (data) => (data.incomplete ? "failure" : "peak");

export function peakOwners(data) {
  const { owners, categories, names } = data;
  const order = owners.bytes.map((_, i) => i);
  const heaviest = Math.max(1, ...owners.bytes);
  const body = h("tbody");
  const draw = (rows) => body.replaceChildren(...rows.map((i) => {
    const mark = categories[owners.category[i]];
    const layer = names[owners.layer[i]];
    return h("tr", {},
      h("th", { scope: "row", class: "pf-text", title: layer }, layer == null ? h("span", { class: "pf-quiet" }, "no layer") : h("span", { class: "pf-name" }, layer)),
      h("td", { class: "pf-text" }, h("span", { class: "pf-kind" }, swatch(mark), mark.word)),
      h("td", { class: "pf-text" }, h("span", { class: "pf-stack" }, h("i", { class: `pf-${mark.pattern}`, style: `background-color:${mark.colour};width:${(100 * owners.bytes[i]) / heaviest}%` }))),
      h("td", {}, figure(byteSize(owners.bytes[i]))), h("td", {}, figure(share(owners.share[i]))), h("td", {}, figure(count(owners.count[i]))));
  }));
  draw(order.slice(0, OWNERS_SHOWN));
  const more = order.length > OWNERS_SHOWN && h("button", {
    type: "button", class: "pf-link", "aria-expanded": "false",
    click: () => {
      const all = more.getAttribute("aria-expanded") === "false";
      more.setAttribute("aria-expanded", String(all));
      more.textContent = all ? "Show only the largest" : moreWords;
      draw(all ? order : order.slice(0, OWNERS_SHOWN));
    },
  });
  const moreWords = `Show all ${order.length}`;
  if (more) more.textContent = moreWords;
  const left = owners.left_out ? h("p", { class: "pf-quiet" }, `${owners.left_out.toLocaleString("en-US")} smaller owners are not listed.`) : null;
  const heads = [["Layer", "", true], ["Category", 118, true], ["", 70, true], ["Memory", 76], ["Share", 56], ["Count", 48]];
  const title = `Owners at the ${instantWord(data)}`;
  return h("section", { class: "pf-owners", "aria-label": title }, h("h3", {}, title),
    order.length ? [h("div", { class: "pf-scroll", tabindex: 0 }, h("table", { class: "pf-small", "aria-label": title },
      h("colgroup", {}, heads.map(([, width]) => h("col", { style: width ? `width:${width}px` : "" }))),
      h("thead", {}, h("tr", {}, heads.map(([word, , text]) => columnHead(word, text)))), body)), more || null, left]
      : h("p", { class: "pf-quiet" }, "Owners are unknown."));
}

// The peak as a bar, and below it how much would remain with each option.
export function whatFits(data) {
  const peak = data.peak.bytes;
  if (!peak) return null;
  const part = (bytes) => `width:${Math.min(100, (100 * bytes) / peak)}%`;
  const held = data.categories.filter((mark) => mark.peak > 0);
  const words = held.map((mark) => `${mark.word} ${byteSize(mark.peak)}`).join(", ");
  const now = h("div", { class: "pf-fit pf-now" },
    h("p", {}, h("b", {}, "Now"), h("span", { class: "pf-left" }, figure(byteSize(peak)))),
    h("div", { class: "pf-fit-bar", role: "img", "aria-label": `The ${instantWord(data)}: ${words}` },
      held.map((mark) => h("i", { class: `pf-${mark.pattern}`, title: `${mark.word} ${byteSize(mark.peak)}, ${share(mark.peak / peak)}`, style: `background-color:${mark.colour};${part(mark.peak)}` }))),
    h("ul", { class: "pf-legend" }, held.filter((mark) => mark.peak >= 0.02 * peak).map((mark) => h("li", {}, swatch(mark), h("span", { class: "pf-word" }, mark.word), h("span", { class: "pf-quiet" }, share(mark.peak / peak))))));
  const options = data.fits.map((fit) => h("li", { class: "pf-fit" },
    h("p", {}, h("b", {}, fit.option), h("span", { class: `pf-basis pf-${fit.basis === "computed" ? "computed" : "estimated"}` }, fit.basis),
      h("span", { class: "pf-left" }, fit.frees == null ? figure(UNKNOWN) : ["frees ", h("b", {}, figure(byteSize(fit.frees))), `, leaves ${byteSize(Math.max(0, peak - fit.frees))}`])),
    fit.frees == null ? null : h("div", { class: "pf-fit-bar", "aria-hidden": "true" },
      h("i", { class: "pf-kept", style: part(Math.max(0, peak - fit.frees)) }), h("i", { class: "pf-freed", style: part(fit.frees) })),
    fit.detail ? h("small", {}, fit.detail) : null));
  const title = options.length ? "What would make it fit?" : `Alive at the ${instantWord(data)}`;
  return h("section", { class: "pf-fits", "aria-label": title }, h("h3", {}, title), now,
    options.length ? h("ul", { class: "pf-options" }, options) : null,
    options.length ? h("p", { class: "pf-quiet" }, `Each option on its own, at the ${instantWord(data)}; the peak may then move to another instant.`) : null);
}
