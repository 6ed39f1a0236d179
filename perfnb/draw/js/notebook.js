// Embeds a view in a notebook's page.
import { h } from "./dom.js";

// Hides the static twin while the live report is displayed. The twin reappears when the report is removed.
function hideTwin(id) {
  const twin = `.perfnb-static-${id}`;
  const rule = h("style", {}, `${twin}, .jp-OutputArea-child:has(${twin}) { display: none !important; }`);
  document.head.append(rule);
  return () => rule.remove();
}

// Notebooks interpret single keys as commands ("dd" deletes the cell). Keys pressed in the report do not propagate to
// listeners outside it. Listeners that run first, as in JupyterLab, check the focused element for an attribute. Ctrl+S
// remains a command.
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

// Inserts a view into the page, and returns a function that removes it.
export function settle(root, id, el) {
  const freeKeys = keepKeys(root);
  el.replaceChildren(root);
  const showTwin = hideTwin(id);
  return () => {
    freeKeys();
    showTwin();
  };
}

// A widget that displays the element returned by `view(data, model)`.
export const widgetOf = (view) => ({
  render({ model, el }) {
    const data = JSON.parse(model.get("data"));
    return settle(view(data, model), data.id, el);
  },
});
