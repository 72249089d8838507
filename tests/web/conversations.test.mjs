// What is kept, what is sent, and what is said about it.

import assert from "node:assert/strict";
import { test } from "node:test";

import { againLabel, Bounded, Conversations, exported, imported, isCut, isFull, isOfUse, newConversation, titleOf } from "../../server/web/conversations.mjs";
import { chatRequest, fault, PARAMETERS, readParameters } from "../../server/web/parameters.mjs";
import { Stopwatch } from "../../server/web/speed.mjs";

/** A `Storage` of a browser. */
class Storage {
  items = new Map();
  get length() {
    return this.items.size;
  }
  key(place) {
    return [...this.items.keys()][place] ?? null;
  }
  getItem(key) {
    return this.items.get(key) ?? null;
  }
  setItem(key, value) {
    this.items.set(key, `${value}`);
  }
  removeItem(key) {
    this.items.delete(key);
  }
}

function conversation(text, updated = 1) {
  return { ...newConversation("", updated), title: text, messages: [{ role: "user", content: text }] };
}

test("conversations outlive the page, the newest first", () => {
  const storage = new Storage();
  storage.setItem("someone else's", "{");
  const before = new Conversations(storage);
  const [old, recent] = [conversation("old", 1), conversation("recent", 2)];
  [recent, old].forEach((one) => before.save(one));
  const after = new Conversations(storage);
  assert.deepEqual(after.list(), [recent, old]);
  assert.equal(after.get(old.id), after.get(old.id));
  after.remove(old.id);
  assert.deepEqual(new Conversations(storage).list(), [recent]);
});

test("an entry that cannot be read is neither shown nor lost", (t) => {
  t.mock.method(console, "warn", () => {});
  const storage = new Storage();
  for (const [place, text] of ["{", "null", '{"messages": [{"role": "x"}]}'].entries()) {
    storage.setItem(`taper.conversation.${place}`, text);
  }
  assert.deepEqual(new Conversations(storage).list(), []);
  assert.equal(storage.length, 3);
});

test("another tab's change is taken", () => {
  const storage = new Storage();
  const [mine, others] = [new Conversations(storage), new Conversations(storage)];
  const changed = conversation("theirs");
  others.save(changed);
  mine.reload(Conversations.idOf(`taper.conversation.${changed.id}`));
  assert.deepEqual(mine.list(), [changed]);
  others.remove(changed.id);
  mine.reload(changed.id);
  assert.deepEqual(mine.list(), []);
  assert.equal(Conversations.idOf("taper.settings"), null);
  assert.equal(Conversations.idOf(null), null);
});

test("a title is how the first message begins", () => {
  assert.equal(titleOf(conversation("  One line\nand another")), "One line");
  assert.equal(titleOf(conversation("😀".repeat(100))), `${"😀".repeat(59)}…`);
  assert.equal(titleOf(newConversation("", 0)), "");
});

test("what is exported is imported as it was, with another id where there is one already", () => {
  const one = conversation("one");
  one.messages.push({ role: "assistant", content: "1", reasoning: "hm", speed: "fast", unfinished: true });
  assert.deepEqual(imported(exported([one]), () => false), [one]);
  const [copy] = imported(exported([one]), (id) => id === one.id);
  assert.notEqual(copy.id, one.id);
  assert.deepEqual(copy.messages, one.messages);
  const twice = imported(exported([one, one]), () => false);
  assert.notEqual(twice[0].id, twice[1].id);
});

test("a file that is none says what is wrong with it", () => {
  const file = (conversations, rest) => JSON.stringify({ format: "taper-conversations", version: 1, conversations, ...rest });
  const check = (text, expected) => assert.throws(() => imported(text, () => false), expected);
  check("{", /no JSON/);
  check("null", /holds no conversations/);
  check('{"format": "other", "conversations": []}', /holds no conversations/);
  check(file([], { version: 2 }), /version 2/);
  check(file([{}]), /conversations\[0\]\.messages must be an array/);
  check(file([null]), /conversations\[0\]\.messages must be an array/);
  check(file([{ messages: [], id: 7 }]), /conversations\[0\]\.id must be a string, and is 7/);
  check(file([{ messages: [{ role: "tool", content: "" }], id: "x" }]), /messages\[0\]\.role must be user or assistant, and is "tool"/);
  check(file([{ messages: [{ role: "user" }], id: "x" }]), /messages\[0\]\.content must be a string, and is missing/);
});

test("unknown fields of a file are left out", () => {
  const text = JSON.stringify({ format: "taper-conversations", version: 1, conversations: [{ id: "x", messages: [], evil: 1 }] });
  assert.deepEqual(imported(text, () => false), [{ id: "x", title: "", created: 0, updated: 0, system: "", messages: [] }]);
});

test("an empty parameter is not sent, a number is, and anything else is a fault", () => {
  assert.deepEqual(readParameters({ temperature: " 0.5 ", top_k: "", seed: "-3" }), { fields: { temperature: 0.5, seed: -3 }, faults: [] });
  assert.deepEqual(readParameters(undefined), { fields: {}, faults: [] });
  const { fields, faults } = readParameters({ temperature: "hot", top_p: "0.5" });
  assert.deepEqual(fields, { top_p: 0.5 });
  assert.deepEqual(faults, ["Temperature must be a number between 0 and 2, and not “hot”."]);
});

test("a switch is a variable of the chat template", () => {
  assert.deepEqual(readParameters({ enable_thinking: "off", seed: "1" }), {
    fields: { seed: 1, chat_template_kwargs: { enable_thinking: false } },
    faults: [],
  });
  assert.deepEqual(readParameters({ enable_thinking: "on" }).fields, { chat_template_kwargs: { enable_thinking: true } });
  assert.deepEqual(readParameters({ enable_thinking: "" }).fields, {});
  assert.deepEqual(readParameters({ enable_thinking: "maybe" }), { fields: {}, faults: ["Thinking must be on or off, and not “maybe”."] });
});

test("the bounds of parameters are the server's", () => {
  const check = (name, good, bad) => {
    const parameter = PARAMETERS.find((one) => one.name === name);
    good.forEach((text) => assert.equal(fault(parameter, text), null, `${name} ${text}`));
    bad.forEach((text) => assert.match(fault(parameter, text), /must be/, `${name} ${text}`));
  };
  check("typical_p", ["0", "1"], ["1.1", "-1"]);
  check("temperature", ["0", "2", "1e-1"], ["-0.1", "2.1", "0,5", "NaN", "Infinity"]);
  check("top_k", ["-1", "0", "40"], ["-2", "1.5", "3000000000"]);
  check("max_tokens", ["1", "100000"], ["0", "-1", "1.5"]);
  check("seed", ["0", "-7", "9007199254740991"], ["9007199254740993", "x", "0.5"]);
  check("frequency_penalty", ["-2", "2"], ["-2.5", "3"]);
  check("repetition_penalty", ["1"], ["0", "101"]);
});

test("stop texts are lines, with the blanks that they have", () => {
  const stops = (text) => readParameters({ stop: text }).fields.stop;
  assert.deepEqual(stops("END\n User:\n\n"), ["END", " User:"]);
  assert.deepEqual(stops("a\\n\\nb\nc\\\\n\\t"), ["a\n\nb", "c\\n\t"]);
  assert.equal(stops("\n \n"), undefined);
  const faultOf = (text) => readParameters({ stop: text }).faults[0];
  assert.equal(faultOf("x\n".repeat(16)), undefined);
  assert.match(faultOf("x\n".repeat(17)), /must be 16 at most, and not 17/);
  assert.equal(faultOf("x".repeat(1024)), undefined);
  assert.match(faultOf("ü".repeat(513)), /must be of 1024 bytes at most/);
});

test("a schema is a form of the answer", () => {
  const { fields, faults } = readParameters({ json_schema: ' {"type": "object"} ', typical_p: "0.9" });
  const form = { type: "json_schema", json_schema: { name: "answer", schema: { type: "object" } } };
  assert.deepEqual([fields, faults], [{ typical_p: 0.9, response_format: form }, []]);
  for (const wrong of ["{", "[]", "5", "null", "object"]) {
    assert.match(readParameters({ json_schema: wrong }).faults[0], /^JSON schema must be a JSON object/, wrong);
  }
});

test("a request holds the system prompt and what was said", () => {
  const messages = [
    { role: "user", content: "a" },
    { role: "assistant", content: "", error: "failed" },
    { role: "assistant", content: "b", reasoning: "hm", speed: "fast" },
    { role: "user", content: "c" },
  ];
  const request = chatRequest({ model: "m", system: "be kind", messages, fields: { seed: 1 } });
  assert.deepEqual(request, {
    model: "m",
    messages: [
      { role: "system", content: "be kind" },
      { role: "user", content: "a" },
      { role: "assistant", content: "b" },
      { role: "user", content: "c" },
    ],
    seed: 1,
    stream: true,
    stream_options: { include_usage: true },
  });
  assert.deepEqual(Object.keys(chatRequest({ model: "", system: " ", messages: [], fields: {} })), ["messages", "stream", "stream_options"]);
});

test("a request may go on with the last answer", () => {
  const messages = [
    { role: "user", content: "a" },
    { role: "assistant", content: "b", unfinished: true },
  ];
  const request = chatRequest({ model: "m", system: "", messages, fields: {}, continues: true });
  assert.deepEqual(request.messages.at(-1), { role: "assistant", content: "b" });
  assert.deepEqual([request.continue_final_message, request.add_generation_prompt], [true, false]);
});

test("an answer is cut that has words and may have had more", () => {
  const check = (message, expected) => assert.equal(isCut({ role: "assistant", content: "b", ...message }), expected, JSON.stringify(message));
  check({}, false);
  check({ unfinished: true }, true);
  check({ unfinished: true, error: "it broke" }, true);
  check({ note: "cut at the limit of tokens" }, true);
  check({ unfinished: true, content: "\n" }, false);
  check({ unfinished: true, role: "user" }, false);
});

test("the line under an answer has what is known", () => {
  const usage = { completion_tokens: 11, prompt_tokens: 200, prompt_tokens_details: { cached_tokens: 64 } };
  const check = (chunks, expected) => {
    const watch = new Stopwatch(1000);
    for (const [chunk, hasText, now] of chunks) watch.take(chunk, hasText, now);
    assert.equal(watch.line(), expected);
  };
  check([[{}, false, 1100]], "");
  check([[{}, true, 1250], [{}, true, 1500]], "first token after 250 ms");
  const line = "first token after 1.25 s · 11 tokens at 20 per second · prompt of 200 tokens, 64 cached";
  check([[{}, true, 2250], [{}, true, 2750], [{ usage }, false, 9000]], line);
  const timings = { predicted_per_second: 5.25 };
  check([[{}, true, 2250], [{ usage, timings }, false, 2300]], line.replace("20 per", "5.3 per"));
  const guessed = { ...timings, draft_n: 5, draft_n_accepted: 3 };
  const guesses = `${line.replace("20 per", "5.3 per")} · 3 of 5 guesses right`;
  check([[{}, true, 2250], [{ usage, timings: guessed }, false, 2300]], guesses);
  check([[{}, true, 2250], [{ usage, timings: { ...guessed, draft_n: 0, draft_n_accepted: 0 } }, false, 2300]], line.replace("20 per", "5.3 per"));
  const bare = { completion_tokens: 2, prompt_tokens: 9 };
  const one = { draft_n: 1, draft_n_accepted: 0, cache_n: 4 };
  check([[{}, true, 1001], [{ usage: bare, timings: one }, false, 1002]], "first token after 1 ms · 2 tokens · prompt of 9 tokens, 4 cached · 0 of 1 guess right");
  const single = { completion_tokens: 1, prompt_tokens: 1, prompt_tokens_details: null };
  check([[{}, true, 1001], [{ usage: single }, false, 1002]], "first token after 1 ms · 1 token · prompt of 1 token");
});

/** A storage that takes nothing. */
function failing(storage, error) {
  storage.setItem = () => {
    throw error;
  };
  return storage;
}

const NO_ROOM = new DOMException("no room", "QuotaExceededError");
const BROKEN = new DOMException("the disk is full", "UnknownError");

test("a storage that takes nothing more is read as before, and its fault is told once", () => {
  for (const fault of [NO_ROOM, BROKEN]) {
    const storage = new Storage();
    const kept = conversation("kept");
    new Conversations(storage).save(kept);
    const told = [];
    const full = new Conversations(new Bounded(failing(storage, fault), (error) => told.push(error)));
    assert.deepEqual(full.list(), [kept]);
    full.save(conversation("new"));
    full.save(conversation("newer"));
    assert.deepEqual(told, [fault]);
    full.remove(kept.id);
    full.save(conversation("newest"));
    assert.deepEqual(told, [fault, fault]);
    failing(storage, new TypeError("ours"));
    assert.throws(() => full.save(kept), TypeError);
  }
  assert.deepEqual([NO_ROOM, BROKEN].map(isFull), [true, false]);
});

test("a storage is of use that takes something, or holds something", () => {
  const storage = new Storage();
  assert.equal(isOfUse(storage), true);
  assert.equal(storage.length, 0);
  for (const fault of [NO_ROOM, BROKEN]) {
    assert.equal(isOfUse(failing(new Storage(), fault)), false);
    const holding = new Storage();
    holding.setItem("taper.settings", "{}");
    assert.equal(isOfUse(failing(holding, fault)), true);
  }
  assert.throws(() => isOfUse(undefined));
});

test("what another tab changed is taken into the same object", () => {
  const storage = new Storage();
  const [here, there] = [new Conversations(storage), new Conversations(storage)];
  const one = conversation("one");
  here.save(one);
  there.reload(one.id);
  there.get(one.id).messages.push({ role: "assistant", content: "two" });
  there.save(there.get(one.id));
  here.reload(one.id);
  assert.equal(here.get(one.id), one);
  assert.equal(one.messages[1].content, "two");
});

test("an answer that has begun is not said to be retried: the button replaces it", () => {
  assert.equal(againLabel({ role: "user", content: "a" }), "Answer");
  assert.equal(againLabel({ role: "assistant", content: "", error: "busy" }), "Retry");
  assert.equal(againLabel({ role: "assistant", content: "a", error: "busy" }), "Regenerate");
  assert.equal(againLabel({ role: "assistant", content: "a" }), "Regenerate");
});
