// The server's API, and its refusals as errors with a message for people.

import { readEvents } from "./sse.mjs";

// Relative, so that the page may stand behind a proxy, below any path.
const BASE = new URL("../", import.meta.url);

/** A request that did not get what it asked for. */
export class Failure extends Error {
  /** `status` is 0 when no answer came; `retryAfter` is in seconds, or null. */
  constructor(message, { status = 0, code = null, retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

/** What a refusal says: the message of an OpenAI error body, or as much as there is. */
export async function failureOf(response) {
  const text = await response.text().catch(() => "");
  const error = errorIn(text);
  const seconds = Number.parseInt(response.headers.get("retry-after") ?? "", 10);
  return new Failure(error?.message ?? `The server answered with status ${response.status}.`, {
    status: response.status,
    code: error?.code ?? null,
    retryAfter: Number.isNaN(seconds) ? null : seconds,
  });
}

function errorIn(text) {
  try {
    return JSON.parse(text).error;
  } catch {
    return undefined;
  }
}

async function call(path, { key, body, signal } = {}) {
  const headers = {};
  if (key) headers.authorization = `Bearer ${key}`;
  if (body) headers["content-type"] = "application/json";
  const request = { headers, signal, cache: "no-store", method: body ? "POST" : "GET", body: body && JSON.stringify(body) };
  let response;
  try {
    response = await fetch(new URL(path, BASE), request);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Failure("The server cannot be reached.");
  }
  if (!response.ok) throw await failureOf(response);
  return response;
}

/** The models: their ids, and the defaults of sampling that server or model file set, `{ value, from }` by parameter. */
export async function listModels(key) {
  const answer = await call("v1/models", { key });
  const { data } = await answer.json();
  return data.map(({ id, sampling_defaults: defaults }) => ({ id, defaults: defaults ?? {} }));
}

/** The text of GET /metrics. */
export async function readMetrics(key, signal) {
  const answer = await call("metrics", { key, signal });
  return answer.text();
}

/** Sends a chat request; the chunks of its answer as they come. Aborting `signal` makes the server stop. */
export async function* streamChat(body, { key, signal }) {
  const response = await call("v1/chat/completions", { key, signal, body });
  const type = response.headers.get("content-type") ?? "";
  if (!type.startsWith("text/event-stream")) {
    throw new Failure(`The answer is no stream of events but ${type || "of no type"}.`, { status: response.status });
  }
  try {
    for await (const data of readEvents(response.body)) {
      if (data === "[DONE]") return;
      yield chunkIn(data);
    }
  } catch (error) {
    if (signal.aborted || error instanceof Failure) throw error;
    throw new Failure("The connection broke before the answer was complete.");
  }
  throw new Failure("The connection ended before the answer was complete.");
}

/** The chunk of a frame; a frame that holds an error is thrown as one. */
export function chunkIn(data) {
  let chunk;
  try {
    chunk = JSON.parse(data);
  } catch {
    throw new Failure("The server sent a piece of an answer that is no JSON.");
  }
  if (chunk.error) {
    throw new Failure(chunk.error.message ?? "The server failed on this answer.", { code: chunk.error.code ?? null });
  }
  return chunk;
}
