// What the metrics were over the last minutes, and what follows from their differences.

import { histogram, largest, modelsOf, ofModel, total } from "./metrics.mjs";

/** Seconds that the charts show. */
export const SHOWN_S = 300;
/** Seconds that rare things are gathered over: percentiles, hits, right guesses. */
export const WINDOW_S = 15;

/** What percentiles are called, and of which histogram of a moment they are. */
const HISTOGRAMS = [["ttft", "firstToken"], ["itl", "betweenTokens"], ["queue", "inQueue"], ["e2e", "wholeRequest"]];

/** The numbers of one moment; `time` is in seconds. A number that the server does not have is null. */
export function snapshot(samples, time) {
  return {
    time,
    prompt: total(samples, "vllm:prompt_tokens_total"),
    generated: total(samples, "vllm:generation_tokens_total"),
    running: total(samples, "vllm:num_requests_running"),
    waiting: total(samples, "vllm:num_requests_waiting"),
    // Each model has a cache of its own; the fullest one tells.
    usage: largest(samples, "vllm:kv_cache_usage_perc"),
    queried: total(samples, "vllm:prefix_cache_queries_total"),
    hit: total(samples, "vllm:prefix_cache_hits_total"),
    guessed: total(samples, "vllm:spec_decode_num_draft_tokens_total"),
    accepted: total(samples, "vllm:spec_decode_num_accepted_tokens_total"),
    firstToken: histogram(samples, "vllm:time_to_first_token_seconds"),
    betweenTokens: histogram(samples, "vllm:inter_token_latency_seconds"),
    inQueue: histogram(samples, "vllm:request_queue_time_seconds"),
    wholeRequest: histogram(samples, "vllm:e2e_request_latency_seconds"),
  };
}

/** Snapshots in their order, and a row of derived numbers for each but the first. */
export class History {
  #snapshots = [];
  #rows = [];

  /** Takes the next moment. When counters went back the server has been started anew, and nothing before counts. */
  add(now) {
    const last = this.#snapshots.at(-1);
    if (last && wentBack(last, now)) this.#snapshots = [];
    const before = this.#snapshots.at(-1);
    this.#snapshots.push(now);
    // One that is as old as the window must stay, to be subtracted.
    while (this.#snapshots.length > 2 && this.#snapshots[1].time <= now.time - WINDOW_S) this.#snapshots.shift();
    if (before) this.#rows.push(derive(this.#snapshots[0], before, now));
    while (this.#rows.length > 0 && this.#rows[0].time < now.time - SHOWN_S) this.#rows.shift();
  }

  /** The row of the last moment, or null. */
  get last() {
    return this.#rows.at(-1) ?? null;
  }

  /** Columns of these names, the time's first, as charts take them. */
  columns(names) {
    return ["time", ...names].map((name) => this.#rows.map((row) => row[name]));
  }
}

function wentBack(before, now) {
  return ["prompt", "generated", "queried", "guessed"].some((name) => now[name] < before[name]);
}

function derive(old, before, now) {
  const seconds = now.time - before.time;
  const rate = (name) => (now[name] === null || before[name] === null || seconds <= 0 ? null : (now[name] - before[name]) / seconds);
  const share = (part, whole) => {
    const all = now[whole] - old[whole];
    return all > 0 ? (100 * (now[part] - old[part])) / all : null;
  };
  const quantile = (name, q) => {
    const seconds = now[name] && old[name] ? now[name].since(old[name]).quantile(q) : null;
    return seconds === null ? null : seconds * 1000;
  };
  const row = {
    time: now.time,
    promptRate: rate("prompt"),
    generatedRate: rate("generated"),
    running: now.running,
    waiting: now.waiting,
    usage: now.usage === null ? null : now.usage * 100,
    hitRate: share("hit", "queried"),
    acceptance: share("accepted", "guessed"),
  };
  for (const [name, histogram] of HISTOGRAMS) {
    for (const percent of [50, 95, 99]) row[`${name}${percent}`] = quantile(histogram, percent / 100);
  }
  return row;
}

/** Histories of all models together, under the empty name, and of each. */
export class Histories {
  #byName = new Map();

  /** Takes the samples of the next moment. */
  add(samples, time) {
    this.#take("", samples, time);
    for (const model of modelsOf(samples)) this.#take(model, ofModel(samples, model), time);
  }

  /** The names of the models that there were. */
  get models() {
    return [...this.#byName.keys()].filter((name) => name !== "").sort();
  }

  /** The history of a model, or of all. */
  of(name) {
    return this.#byName.get(name) ?? new History();
  }

  #take(name, samples, time) {
    if (!this.#byName.has(name)) this.#byName.set(name, new History());
    this.#byName.get(name).add(snapshot(samples, time));
  }
}
