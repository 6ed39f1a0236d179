// The verdict below the title, and the Findings tab.
import { figure, h } from "../../draw/js/dom.js";
import { triesOf, trial } from "./try.js";
import { UNKNOWN, byteSize, duration, grouped, share } from "../../draw/js/format.js";
import { tabMakers } from "../../draw/js/tabs.js";

function verdictLines(findings, showFindings) {
  if (!findings?.verdict.length) return null;
  const [[, verdict], ...rest] = findings.verdict;
  const rows = findings.rows.length;
  const link = rows > 0 && h("button", { type: "button", class: "pf-link pf-more", click: () => showFindings(findings.finding ?? 0) },
    rows === 1 ? "The finding" : `All ${rows} findings`);
  return h("section", { class: "pf-verdict", "aria-label": "Verdict" },
    h("p", { class: "pf-says" }, verdict),
    h("dl", {}, rest.map(([head, words]) => h("div", {}, h("dt", {}, head), h("dd", {}, words)))),
    link || null);
}

function boundWords(finding) {
  const parts = [];
  if (finding.bound_ms != null) parts.push([h("b", {}, figure(duration(finding.bound_ms))), h("span", { class: "pf-quiet" }, share(finding.bound_share))]);
  if (finding.bound_bytes != null) parts.push([h("b", {}, figure(byteSize(finding.bound_bytes))), h("span", { class: "pf-quiet" }, finding.grows ? "more in use after the step" : "of memory freed")]);
  return parts.length ? parts.flat() : [h("span", { class: "pf-unknown", title: "Its cost is unknown" }, UNKNOWN)];
}

function advice(finding) {
  return [h("p", {}, h("b", {}, "Try "), finding.advice), finding.code && h("pre", { class: "pf-code" }, h("code", {}, finding.code))].filter(Boolean);
}

function findingCard(finding, place, show, cure) {
  const links = finding.links.map((link) => {
    const go = link.at >= 0 ? show[link.kind] : null;
    return go ? h("button", { type: "button", class: "pf-link pf-name", title: `Show ${link.word}`, click: () => go(link.at) }, link.word)
      : h("span", { class: "pf-quiet pf-name" }, link.word);
  });
  const width = `width:${Math.min(100, 100 * (finding.bound_share ?? 0))}%`;
  return h("li", { class: "pf-finding", tabindex: "-1" },
    h("div", { class: "pf-finding-head" },
      h("h3", {}, h("span", { class: "pf-quiet" }, `${place + 1}`), finding.bottleneck),
      h("span", { class: "pf-bound", title: "The most that removing it could save per step" }, finding.grows ? null : h("span", { class: "pf-quiet" }, "up to"), boundWords(finding)),
      h("span", { class: "pf-sure", title: finding.why }, `${finding.confidence} confidence`)),
    finding.bound_share == null ? null : h("div", { class: "pf-saves", "aria-hidden": "true" }, h("i", { style: width })),
    h("p", {}, finding.evidence),
    links.length ? h("p", { class: "pf-links" }, links) : null,
    cure,
    h("p", { class: "pf-quiet" }, h("b", {}, `${finding.confidence} confidence `), finding.why),
    h("p", { class: "pf-quiet" }, h("b", {}, "Caveat "), finding.blind));
}

function findingsTab(findings, show, model) {
  const cures = findings.rows.map((finding) => h("div", { class: "pf-cure" }, advice(finding)));
  const cards = findings.rows.map((finding, place) => findingCard(finding, place, show, cures[place]));
  triesOf(model, (tries) => findings.rows.forEach((finding, place) => {
    if (!finding.remedy) return;
    const held = cures[place].contains(document.activeElement);
    cures[place].replaceChildren(...trial(finding, tries, advice));
    if (held) cards[place].focus({ preventScroll: true });
  }));
  const none = h("p", { class: "pf-quiet" }, "Nothing stands out: the step has no known bottleneck.");
  const element = h("div", { class: "pf-view" }, cards.length ? h("ol", { class: "pf-findings" }, cards) : none);
  const reveal = (place) => {
    cards[place]?.scrollIntoView({ block: "nearest" });
    cards[place]?.focus({ preventScroll: true });
  };
  return { element, reveal };
}

tabMakers.findings = ({ data, model, has, go }) => {
  const show = {};
  for (const [kind, tab] of [["layer", "layers"], ["op", "ops"], ["memory", "memory"]]) if (has(tab)) show[kind] = (at) => go(tab, at);
  const headline = verdictLines(data.findings, (place) => go("findings", place));
  return { ...findingsTab(data.findings, show, model), headline, size: grouped(data.findings.rows.length) };
};
