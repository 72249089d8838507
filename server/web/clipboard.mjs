// Copying text.

import { button } from "./dom.mjs";

const SHOWN_MS = 1500;

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Browsers have no clipboard where neither https nor this very machine is the source; the old way works there.
  const field = document.createElement("textarea");
  field.value = text;
  field.readOnly = true;
  field.className = "unseen";
  document.body.append(field);
  field.select();
  const isDone = document.execCommand("copy");
  field.remove();
  if (!isDone) throw new Error("the browser refused");
}

/** A button that copies what `text()` gives, and says whether it did. */
export function copyButton(text) {
  const shown = button("Copy", async () => {
    try {
      await copy(text());
      shown.textContent = "Copied";
    } catch {
      shown.textContent = "Cannot copy";
    }
    setTimeout(() => (shown.textContent = "Copy"), SHOWN_MS);
  });
  shown.classList.add("copy");
  return shown;
}
