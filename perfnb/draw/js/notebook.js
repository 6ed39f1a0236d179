// How a view lives in a notebook's page.
import { h } from "./dom.js";


// The static twin gives way while the live report stands; it comes back when the report is removed.
function hideTwin(id) {
  if (!/^[\w-]+$/.test(id)) return () => {};
  const twin = `.perfnb-static-${id}`;
  const rule = h("style", {}, `${twin}, .jp-OutputArea-child:has(${twin}) { display: none !important; }`);
  document.head.append(rule);
  return () => rule.remove();
}

// Notebooks take single keys as commands ("dd" deletes the cell). Those that listen below the report never hear of
// ours; those that hear first, as JupyterLab may, ask the focused element for an attribute. Ctrl+S stays a command.
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

// Puts a view into its place in the page; the function that takes it out again.
export function settle(root, id, el) {
  const freeKeys = keepKeys(root);
  el.replaceChildren(root);
  const showTwin = hideTwin(id);
  return () => {
    freeKeys();
    showTwin();
  };
}
