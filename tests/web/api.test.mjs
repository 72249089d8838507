// Requests and refusals.

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";

import { failureOf, listModels, streamChat } from "../../server/web/api.mjs";

const realFetch = globalThis.fetch;
afterEach(() => (globalThis.fetch = realFetch));

/** Answers the next requests with `respond(url, request)`. */
function answering(respond) {
  globalThis.fetch = async (url, request) => respond(new URL(url), request);
}

async function texts(signal = new AbortController().signal) {
  const found = [];
  for await (const chunk of streamChat({ messages: [] }, { key: "", signal })) found.push(chunk.text);
  return found;
}

const stream = (text) => new Response(text, { headers: { "content-type": "text/event-stream" } });

test("a refusal says what the server says", async () => {
  const body = JSON.stringify({ error: { message: "the queue is full", code: "queue_full" } });
  const failure = await failureOf(new Response(body, { status: 429, headers: { "retry-after": "3" } }));
  assert.deepEqual([failure.message, failure.status, failure.code, failure.retryAfter], ["the queue is full", 429, "queue_full", 3]);
});

test("a refusal that is none of ours has its status at least", async () => {
  for (const body of ["<h1>Bad gateway</h1>", "", "null", "[]", '{"error": null}']) {
    const failure = await failureOf(new Response(body, { status: 502 }));
    assert.deepEqual([failure.message, failure.retryAfter], ["The server answered with status 502.", null], body);
  }
});

test("the key is sent where there is one", async () => {
  const sent = [];
  answering((url, { headers }) => {
    sent.push([url.pathname.endsWith("/server/v1/models"), headers.authorization]);
    return Response.json({ data: [{ id: "a" }, { id: "b", sampling_defaults: { top_k: { value: 9, from: "model" } } }] });
  });
  const expected = [{ id: "a", defaults: {} }, { id: "b", defaults: { top_k: { value: 9, from: "model" } } }];
  assert.deepEqual(await listModels("secret"), expected);
  await listModels("");
  assert.deepEqual(sent, [[true, "Bearer secret"], [true, undefined]]);
});

test("an answer is its chunks up to the end that the server names", async () => {
  answering(() => stream('data: {"text": "a"}\n\ndata: {"text": "b"}\n\ndata: [DONE]\n\n'));
  assert.deepEqual(await texts(), ["a", "b"]);
});

test("an answer without its end is an error, and so is anything but a stream", async () => {
  answering(() => stream('data: {"text": "a"}\n\n'));
  await assert.rejects(texts(), /ended before the answer was complete/);
  answering(() => new Response("{}", { headers: { "content-type": "application/json" } }));
  await assert.rejects(texts(), /no stream of events/);
  answering(() => {
    throw new TypeError("fetch failed");
  });
  await assert.rejects(texts(), /cannot be reached/);
});

test("what the user stops is no failure of the server", async () => {
  const controller = new AbortController();
  answering((_url, { signal }) => {
    controller.abort();
    throw signal.reason;
  });
  await assert.rejects(texts(controller.signal), { name: "AbortError" });
});
