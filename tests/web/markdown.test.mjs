// Markdown, as far as it goes without a page.

import assert from "node:assert/strict";
import { test } from "node:test";

import { blocksOf } from "../../server/web/markdown.mjs";

test("each block is one piece of HTML", () => {
  assert.deepEqual(blocksOf("# a\n\n<b>\n"), ["<h1>a</h1>\n", "<p>&lt;b&gt;</p>"]);
});

test("a text that is nested too deep is shown as it is written", (t) => {
  t.mock.method(console, "warn", () => {});
  const text = `${">".repeat(30_000)}<b>`;
  assert.deepEqual(blocksOf(text), [`<pre><code>${text.replaceAll("<", "&lt;").replaceAll(">", "&gt;")}\n</code></pre>`]);
});
