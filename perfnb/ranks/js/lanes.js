// One step of all ranks on one clock: a drawing that perfnb has made safe, in the live view as elsewhere.
import { h } from "../../draw/js/dom.js";
import { pictures } from "../../draw/js/document.js";

pictures.lanes = ({ data, section }) => {
  const drawing = h("div");
  drawing.innerHTML = data;
  return h("div", {}, h("h3", { class: "pf-section" }, section.title), drawing);
};
