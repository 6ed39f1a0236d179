// The live view of a host profile.
import { h, notesSection, titled } from "../../draw/js/dom.js";
import { widgetOf } from "../../draw/js/notebook.js";
import { flameView } from "./view.js";

function hostView(data) {
  const view = data.flame ? flameView(data.flame, "Flame graph") : { element: null, shown: () => {} };
  const root = h("article", { class: "perfnb", "aria-label": `Host profile ${data.name}` },
    h("header", { class: "pf-head" }, titled(data.name, data.format), h("p", {}, data.headline)), view.element, notesSection(data.notes));
  requestAnimationFrame(view.shown);
  return root;
}

const flameHost = widgetOf(hostView);
export default flameHost;
