// How a view lives in a notebook's page.
import { h } from "./dom.js";

// Hides the static twin while the live report is there; it comes back when the report is removed.
function hideTwin(id) {
  if (!/^[\w-]+$/.test(id)) return () => {};
  const twin = `.perfnb-static-${id}`;
  const rule = h("style", {}, `${twin}, .jp-OutputArea-child:has(${twin}) { display: none !important; }`);
  document.head.append(rule);
  return () => rule.remove();
}

// Notebooks take single keys as commands ("dd" deletes the cell). Listeners below the report never see our keys; those
// that come first, as in JupyterLab, check the focused element for an attribute. Ctrl+S stays a command.
function keepKeys(root) {
  const isCommand = (event) => event.ctrlKey || event.metaKey;
  const mark = (event) => {
    const [target] = event.composedPath();
    if (target instanceof Element && root.contains(target)) target.toggleAttribute("data-lm-suppress-shortcuts", !isCommand(event));
  };
  window.addEventListener("keydown", mark, true);
  root.addEventListener("keydown", (event) => isCommand(event) || event.stopPropagation());
  return () => window.removeEventListener("keydown", mark, true);
}

// Puts a view into the page; returns the function that removes it.
export function settle(root, id, el) {
  const freeKeys = keepKeys(root);
  el.replaceChildren(root);
  const showTwin = hideTwin(id);
  return () => {
    freeKeys();
    showTwin();
  };
}

// A widget that shows what `view(data, model)` returns.
export const widgetOf = (view) => ({
  render({ model, el }) {
    const data = JSON.parse(model.get("data"));
    return settle(view(data, model), data.id, el);
  },
});
