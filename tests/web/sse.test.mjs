// Server-sent events from pieces of any size.

import assert from "node:assert/strict";
import { test } from "node:test";

import { chunkIn } from "../../server/web/api.mjs";
import { EventParser, readEvents } from "../../server/web/sse.mjs";

function check(pieces, expected) {
  const parser = new EventParser();
  assert.deepEqual(pieces.flatMap((piece) => parser.push(piece)), expected, JSON.stringify(pieces));
}

test("an event is complete with its empty line and not before", () => {
  check(["data: a\n\ndata: b\n\n"], ["a", "b"]);
  check(["data: a\n"], []);
  check(["data: a"], []);
});

test("lines end in any of the three ways", () => {
  check(["data: a\r\n\r\ndata: b\r\rdata: c\n\n"], ["a", "b", "c"]);
  check(["data: a\r", "\n\r", "\ndata: b\n\n"], ["a", "b"]);
});

test("comments, other fields and events without data say nothing", () => {
  check([": keep-alive\n\nevent: x\nid: 1\ndata: a\nretry: 5\n\n\n\n"], ["a"]);
  check(["database: a\n\n"], []);
});

test("several lines of data are one text, and one space after the colon is none of it", () => {
  check(["data: a\ndata:b\ndata:  c\ndata\n\n"], ["a\nb\n c\n"]);
});

test("a byte order mark begins a stream at most", () => {
  check(["\ufeffdata: a\n\ndata: \ufeff\n\n"], ["a", "\ufeff"]);
});

test("where a stream is cut changes nothing", () => {
  const stream = ": hello\r\n\r\ndata: {\"a\": 1}\r\n\r\ndata: x\ndata: y\n\ndata: z\r\rdata: [DONE]\n\n";
  const expected = ['{"a": 1}', "x\ny", "z", "[DONE]"];
  for (let first = 0; first <= stream.length; first++) {
    for (let second = first; second <= stream.length; second++) {
      check([stream.slice(0, first), stream.slice(first, second), stream.slice(second)], expected);
    }
  }
});

test("a character that is cut in two arrives whole, and leaving the loop ends the transfer", async () => {
  const bytes = new TextEncoder().encode("data: Ünï §\n\ndata: b\n\n");
  let isCancelled = false;
  const body = new ReadableStream({
    start: (controller) => bytes.forEach((byte) => controller.enqueue(Uint8Array.of(byte))),
    cancel: () => void (isCancelled = true),
  });
  for await (const data of readEvents(body)) {
    assert.equal(data, "Ünï §");
    break;
  }
  assert.ok(isCancelled);
});

test("a frame with an error is thrown with what it says", () => {
  assert.deepEqual(chunkIn('{"choices": []}'), { choices: [] });
  const frame = '{"error": {"message": "out of time", "code": "request_timeout"}}';
  assert.throws(() => chunkIn(frame), { message: "out of time", code: "request_timeout" });
  assert.throws(() => chunkIn("{"), /no JSON/);
});
