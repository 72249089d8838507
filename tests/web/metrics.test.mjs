// Prometheus' text format, histograms, and what the live view makes of them.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Histogram } from "../../server/web/histogram.mjs";
import { Histories, History, SHOWN_S, snapshot, WINDOW_S } from "../../server/web/history.mjs";
import { histogram, largest, modelsOf, ofModel, parseMetrics, total } from "../../server/web/metrics.mjs";

test("samples are read with their labels", () => {
  const text = [
    "# HELP a:b_total Help.",
    "# TYPE a:b_total counter",
    'a:b_total{engine="0",model_name="x"} 3',
    'a:b_total{engine="1",model_name="x",} 4.5',
    "plain 1e3 1700000000000",
    "endless +Inf",
    "nothing NaN",
    "no sample",
    'quoted{name="a\\"b\\\\c\\nd,e}"} 1',
  ].join("\n");
  const samples = parseMetrics(text);
  assert.equal(total(samples, "a:b_total"), 7.5);
  assert.deepEqual(samples.get("a:b_total")[1].labels, { engine: "1", model_name: "x" });
  assert.equal(total(samples, "plain"), 1000);
  assert.equal(total(samples, "endless"), Infinity);
  assert.equal(total(samples, "nothing"), null);
  assert.equal(samples.get("quoted")[0].labels.name, 'a"b\\c\nd,e}');
  assert.equal(samples.size, 4);
});

test("a histogram is the sum over its labels", () => {
  const text = ["0", "1"].map((engine) => `h_bucket{engine="${engine}",le="0.5"} 2\nh_bucket{engine="${engine}",le="+Inf"} 3`);
  const found = histogram(parseMetrics(text.join("\n")), "h");
  assert.equal(found.count, 6);
  assert.equal(found.quantile(0.5), 0.5 * (3 / 4));
  assert.equal(histogram(parseMetrics(""), "h"), null);
});

test("percentiles lie where Prometheus has them", () => {
  const check = (buckets, q, expected) => assert.equal(new Histogram(buckets).quantile(q), expected);
  // Ten observations up to 1, ten up to 2, none above.
  const even = [[1, 10], [2, 20], [4, 20], [Infinity, 20]];
  check(even, 0.25, 0.5);
  check(even, 0.5, 1);
  check(even, 0.75, 1.5);
  check(even, 1, 2);
  // Empty buckets before the first observation are passed over.
  check([[1, 0], [2, 0], [4, 10], [Infinity, 10]], 0, 2);
  check([[1, 0], [2, 0], [4, 10], [Infinity, 10]], 0.5, 3);
  // Beyond the last bound there is only that bound.
  check([[1, 0], [2, 0], [Infinity, 5]], 0.99, 2);
  check([[1, 0], [Infinity, 0]], 0.5, null);
  check([], 0.5, null);
});

test("what came since is the difference of the counts", () => {
  const before = new Histogram([[1, 5], [Infinity, 5]]);
  const now = new Histogram([[1, 5], [2, 15], [Infinity, 15]]);
  assert.equal(now.since(before).count, 10);
  // The bound of 2 is new: all below it came since, as far as anyone can tell.
  assert.equal(now.since(now).quantile(0.5), null);
  assert.equal(before.since(now).count, 0);
});

/** A snapshot `time` seconds on. */
function at(time, numbers) {
  const names = ["prompt", "generated", "running", "waiting", "usage", "queried", "hit", "guessed", "accepted"];
  const histograms = { firstToken: null, betweenTokens: null, inQueue: null, wholeRequest: null };
  return { time, ...histograms, ...Object.fromEntries(names.map((name) => [name, 0])), ...numbers };
}

test("rates are differences by the time that passed", () => {
  const history = new History();
  history.add(at(100, { generated: 10 }));
  assert.equal(history.last, null);
  history.add(at(102, { generated: 60, running: 2, usage: 0.25 }));
  assert.equal(history.last.generatedRate, 25);
  assert.deepEqual([history.last.running, history.last.usage], [2, 25]);
  // Nobody asked the prefix cache, and nothing was guessed: no share, rather than none.
  assert.deepEqual([history.last.hitRate, history.last.acceptance], [null, null]);
});

test("shares and percentiles are of the window", () => {
  const history = new History();
  const counted = (count) => new Histogram([[1, count], [Infinity, count]]);
  history.add(at(0, { queried: 1000, hit: 1000, firstToken: counted(1) }));
  for (let time = 1; time <= WINDOW_S; time++) history.add(at(time, { queried: 1100, hit: 1050, firstToken: counted(3) }));
  assert.equal(history.last.hitRate, 50);
  assert.equal(history.last.ttft50, 500);
  history.add(at(WINDOW_S + 1, { queried: 1100, hit: 1050, firstToken: counted(3) }));
  assert.deepEqual([history.last.hitRate, history.last.ttft50], [null, null]);
});

test("a server that was started anew begins anew", () => {
  const history = new History();
  history.add(at(0, { generated: 100, queried: 50, hit: 50 }));
  history.add(at(1, { generated: 110, queried: 60, hit: 50 }));
  history.add(at(2, { generated: 5, queried: 10, hit: 10 }));
  assert.deepEqual(history.columns(["generatedRate"]), [[1], [10]]);
  history.add(at(3, { generated: 8, queried: 20, hit: 10 }));
  assert.deepEqual(history.columns(["generatedRate", "hitRate"]), [[1, 3], [10, 3], [0, 0]]);
});

test("what is older than the charts is forgotten", () => {
  const history = new History();
  for (let time = 0; time <= 2 * SHOWN_S; time++) history.add(at(time, { generated: time }));
  const [times] = history.columns([]);
  assert.deepEqual([times[0], times.at(-1)], [SHOWN_S, 2 * SHOWN_S]);
});

test("a snapshot has null for what a server does not measure", () => {
  const now = snapshot(parseMetrics("vllm:generation_tokens_total 7\n"), 1);
  assert.deepEqual([now.generated, now.prompt, now.firstToken], [7, null, null]);
  const history = new History();
  history.add(now);
  history.add({ ...now, time: 2 });
  assert.deepEqual([history.last.generatedRate, history.last.promptRate, history.last.usage], [0, null, null]);
});

/** What a server of two models says when each has generated so many tokens. */
function ofTwo(first, second) {
  const samples = [["a", first, 0.25], ["b\"", second, 0.5]].map(([model, tokens, usage]) => {
    const labels = `engine="0",model_name="${model.replace('"', '\\"')}"`;
    return `vllm:generation_tokens_total{${labels}} ${tokens}\nvllm:kv_cache_usage_perc{${labels}} ${usage}`;
  });
  return parseMetrics(`${samples.join("\n")}\ntaper:http_requests_total{route="/",method="GET",status="200"} 7\n`);
}

test("the samples of one model are told from those of others and of none", () => {
  const samples = ofTwo(3, 4);
  assert.deepEqual(modelsOf(samples), ["a", 'b"']);
  assert.deepEqual([total(samples, "vllm:generation_tokens_total"), largest(samples, "vllm:kv_cache_usage_perc")], [7, 0.5]);
  const own = ofModel(samples, 'b"');
  assert.deepEqual([...own.keys()], ["vllm:generation_tokens_total", "vllm:kv_cache_usage_perc"]);
  assert.equal(total(own, "vllm:generation_tokens_total"), 4);
  assert.equal(largest(own, "taper:http_requests_total"), null);
});

test("each model has a history, and all have one together", () => {
  const histories = new Histories();
  histories.add(ofTwo(10, 100), 0);
  histories.add(ofTwo(12, 106), 2);
  assert.deepEqual(histories.models, ["a", 'b"']);
  const rates = ["", "a", 'b"'].map((name) => histories.of(name).last.generatedRate);
  assert.deepEqual(rates, [4, 1, 3]);
  assert.deepEqual([histories.of("").last.usage, histories.of("a").last.usage], [50, 25]);
  assert.equal(histories.of("none").last, null);
  // One that is unloaded has no more rows, and the other goes on.
  histories.add(ofModel(ofTwo(14, 106), "a"), 4);
  assert.deepEqual([histories.of("a").columns([])[0], histories.of('b"').columns([])[0]], [[2, 4], [2]]);
});

test("the queue and whole requests have percentiles", () => {
  const text = (count) =>
    ["request_queue_time", "e2e_request_latency"].map((name) => `vllm:${name}_seconds_bucket{le="2.0"} ${count}\nvllm:${name}_seconds_bucket{le="+Inf"} ${count}`).join("\n");
  const history = new History();
  [0, 4].forEach((count, time) => history.add(snapshot(parseMetrics(text(count)), time)));
  assert.deepEqual([history.last.queue50, history.last.e2e95, history.last.ttft50], [1000, 1900, null]);
});
