// Markdown of a stranger as elements of the page. HTML in it is shown as it is written; images are links, so that nothing
// is fetched that nobody clicked; what is left passes a list of allowed elements. The page's policy stands behind all of it.

import { copyButton } from "./clipboard.mjs";
import { make } from "./dom.mjs";
import { Marked } from "./vendor/marked/marked.esm.js";
import "./vendor/dompurify/purify.min.js";

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
const escape = (text) => text.replace(/[&<>"']/g, (character) => ESCAPES[character]);

const marked = new Marked({
  gfm: true,
  // Models end a line where they mean it.
  breaks: true,
  renderer: {
    html({ text, block }) {
      const shown = escape(text.trim()).replaceAll("\n", "<br>");
      return block ? `<p>${shown}</p>` : escape(text);
    },
    image({ href, text }) {
      return `<a href="${escape(href)}">${escape(text || href)}</a>`;
    },
    checkbox({ checked }) {
      return checked ? "☑ " : "☐ ";
    },
    code({ text, lang }) {
      const language = /^\S*/.exec(lang ?? "")[0];
      return `<pre><code data-language="${escape(language)}">${escape(text)}\n</code></pre>`;
    },
  },
});

const ALLOWED = {
  ALLOWED_TAGS: [
    ..."a blockquote br code del em h1 h2 h3 h4 h5 h6 hr li ol p pre strong".split(" "),
    ..."table tbody td th thead tr ul".split(" "),
  ],
  ALLOWED_ATTR: ["align", "data-language", "href", "start", "title"],
  // Their values are no addresses, and are not held to what those may be.
  ADD_URI_SAFE_ATTR: ["align", "data-language", "start"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  RETURN_DOM_FRAGMENT: true,
};

/** The HTML of each block of `text`, to be sanitized; all of it as code where it is nested deeper than it can be read. */
export function blocksOf(text) {
  try {
    const tokens = marked.lexer(text);
    return tokens.filter(({ type }) => type !== "space" && type !== "def").map((token) => marked.parser([token]));
  } catch (error) {
    // Reading recurses; a message that is kept must not break the page each time it is opened.
    console.warn(`a text cannot be read as Markdown: ${error.message}`);
    return [`<pre><code>${escape(text)}\n</code></pre>`];
  }
}

/** The blocks of an element as they were written into it. */
const written = new WeakMap();

/** Shows `text` in `element`. Blocks that did not change keep their elements, and so what a reader has selected in them. */
export function showMarkdown(element, text) {
  const blocks = blocksOf(text);
  const before = written.get(element) ?? [];
  for (const [place, html] of blocks.entries()) {
    if (before[place] === html) continue;
    const block = make("div", { className: "block" }, safe(html));
    const old = element.children[place];
    if (old) old.replaceWith(block);
    else element.append(block);
  }
  while (element.children.length > blocks.length) element.lastElementChild.remove();
  written.set(element, blocks);
}

function safe(html) {
  const fragment = globalThis.DOMPurify.sanitize(html, ALLOWED);
  for (const link of fragment.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
  }
  for (const table of fragment.querySelectorAll("table")) {
    const frame = make("div", { className: "wide" });
    table.replaceWith(frame);
    frame.append(table);
  }
  for (const pre of fragment.querySelectorAll("pre")) {
    const code = pre.querySelector("code");
    const head = make("div", { className: "code-head" }, code?.dataset.language || "code", copyButton(() => pre.textContent));
    const frame = make("div", { className: "code" });
    pre.replaceWith(frame);
    // Long lines are scrolled, and a keyboard must get there.
    pre.tabIndex = 0;
    frame.append(head, pre);
  }
  return fragment;
}
