// Prometheus' text format, as far as a server's own page needs it.

import { Histogram } from "./histogram.mjs";

const SAMPLE = /^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$/;
const LABEL = /([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"\s*,?\s*/gy;
const ESCAPES = { "\\n": "\n", '\\"': '"', "\\\\": "\\" };

/** The samples of a text by name: `[{ labels, value }]` each. A line that is no sample is passed over. */
export function parseMetrics(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    if (line.startsWith("#")) continue;
    const match = SAMPLE.exec(line);
    if (!match) continue;
    const [, name, labels, value] = match;
    const number = numberOf(value);
    if (Number.isNaN(number)) continue;
    if (!samples.has(name)) samples.set(name, []);
    samples.get(name).push({ labels: labelsOf(labels ?? ""), value: number });
  }
  return samples;
}

function numberOf(text) {
  if (text === "+Inf") return Infinity;
  return text === "-Inf" ? -Infinity : Number(text);
}

function labelsOf(text) {
  const labels = {};
  for (const [, name, value] of text.matchAll(LABEL)) {
    labels[name] = value.replace(/\\[n"\\]/g, (escape) => ESCAPES[escape]);
  }
  return labels;
}

/** The sum of a metric over its labels, or null where there is none. */
export function total(samples, name) {
  const found = samples.get(name);
  return found ? found.reduce((sum, { value }) => sum + value, 0) : null;
}

/** The largest value of a metric over its labels, or null where there is none. */
export function largest(samples, name) {
  const found = samples.get(name);
  return found ? Math.max(...found.map(({ value }) => value)) : null;
}

const MODEL = "model_name";

/** The models that samples are of, by name. */
export function modelsOf(samples) {
  const names = [...samples.values()].flat().map(({ labels }) => labels[MODEL]);
  return [...new Set(names.filter((name) => name !== undefined))].sort();
}

/** The samples of one model. */
export function ofModel(samples, model) {
  const own = [...samples].map(([name, found]) => [name, found.filter(({ labels }) => labels[MODEL] === model)]);
  return new Map(own.filter(([, found]) => found.length > 0));
}

/** A histogram, summed over its labels, or null. */
export function histogram(samples, name) {
  const found = samples.get(`${name}_bucket`);
  if (!found) return null;
  const counts = new Map();
  for (const { labels, value } of found) {
    const bound = numberOf(labels.le ?? "");
    if (!Number.isNaN(bound)) counts.set(bound, (counts.get(bound) ?? 0) + value);
  }
  return new Histogram([...counts].sort(([a], [b]) => a - b));
}
