/** A dialog over the page. The focus stays in it, Escape closes it, and the focus returns to where it was. */
import { html, useId, useLayoutEffect, useRef } from "./html.js";

/**
 * @param {{title: import("./html.js").Children, onClose: () => void, wide?: boolean, children?: import("./html.js").Children}} properties
 */
export function Dialog({ title, onClose, wide = false, children }) {
  const element = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const heading = useId();
  useLayoutEffect(() => {
    const [dialog, before] = [/** @type {HTMLDialogElement} */ (element.current), document.activeElement];
    dialog.showModal();
    return () => {
      dialog.close();
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  const outside = (/** @type {MouseEvent} */ event) => event.target === element.current && onClose();
  return html`
    <dialog ref=${element} class=${wide ? "wide" : ""} aria-labelledby=${heading}
      onCancel=${onClose} onClick=${outside}>
      <header>
        <h2 id=${heading}>${title}</h2>
        <button type="button" class="quiet" aria-label="Close" onClick=${onClose}>✕</button>
      </header>
      <div class="body">${children}</div>
    </dialog>
  `;
}
