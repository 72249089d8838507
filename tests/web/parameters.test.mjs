// Parameters of a request: what the user set, and what stands in for the rest.

import assert from "node:assert/strict";
import { test } from "node:test";

import { chatRequest, mayContinue, PARAMETERS, readParameters, standIn } from "../../server/web/parameters.mjs";

const OWN = { temperature: 0.8, top_p: 0.95, top_k: 40, min_p: 0.05 };
const set = (value, from) => ({ value, from });

test("what nobody sets is as in the terminal's chat", () => {
  assert.deepEqual(readParameters({}, {}), { fields: OWN, faults: [] });
  assert.deepEqual(readParameters({ temperature: " ", seed: "5" }, {}).fields, { ...OWN, seed: 5 });
});

test("the user's values count, and then the server's and the model's", () => {
  const defaults = { temperature: set(0.6, "setting"), top_k: set(20, "model"), max_tokens: set(9, "setting") };
  assert.deepEqual(readParameters({}, defaults).fields, { top_p: 0.95, min_p: 0.05 });
  assert.deepEqual(readParameters({ temperature: "0", min_p: "0" }, defaults).fields, { temperature: 0, top_p: 0.95, min_p: 0 });
  assert.deepEqual(readParameters({}, { temperature: set(0, "setting") }).fields, { top_p: 0.95, top_k: 40, min_p: 0.05 });
});

test("nothing is sent by itself before the server has told its defaults", () => {
  assert.deepEqual(readParameters({ top_k: "7" }).fields, { top_k: 7 });
});

test("a value out of bounds is told and not replaced", () => {
  const { fields, faults } = readParameters({ temperature: "hot" }, {});
  assert.equal(faults.length, 1);
  assert.equal(fields.temperature, undefined);
});

test("an empty field shows what stands in for it", () => {
  const of = (name, defaults) => standIn(PARAMETERS.find((parameter) => parameter.name === name), defaults);
  assert.equal(of("temperature"), "server's default");
  assert.equal(of("temperature", {}), "0.8");
  assert.equal(of("temperature", { temperature: set(0, "setting") }), "0 (the server's default)");
  assert.equal(of("top_k", { top_k: set(20, "model") }), "20 (the model's default)");
  assert.equal(of("seed", {}), "server's default");
});

test("a request has what was said, and the model where there is one", () => {
  const messages = [{ role: "user", content: "hi" }, { role: "assistant", content: "", error: "no" }];
  const request = chatRequest({ model: "", system: " ", messages, fields: { seed: 1 } });
  const expected = { messages: [{ role: "user", content: "hi" }], seed: 1, stream: true, stream_options: { include_usage: true } };
  assert.deepEqual(request, expected);
  assert.equal(chatRequest({ model: "m", system: "", messages, fields: {} }).model, "m");
});

test("an answer of a form is not continued, which servers refuse", () => {
  assert.ok(mayContinue(readParameters({ temperature: "0.5" }).fields));
  assert.ok(!mayContinue(readParameters({ json_schema: '{"type":"object"}' }).fields));
});
