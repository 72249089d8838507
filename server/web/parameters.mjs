// The parameters of a request that the page offers, and the request itself.

const MOST = Number.MAX_SAFE_INTEGER;
/** As many stop texts, of as many bytes, as the server takes. */
const MOST_STOPS = 16;
const MOST_STOP_BYTES = 1024;

/**
 * Name in the API, label, bounds of a number or the kind of what is no number, and what it does. One with a `switch` is a variable of
 * the chat template, with what its choices are there. A parameter that is left empty is not sent, so that the server's default counts;
 * of those that have an `own` value, which `taper chat` has too, that one is sent where the server has no default.
 */
export const PARAMETERS = [
  { name: "temperature", own: 0.8, label: "Temperature", least: 0, most: 2, hint: "0 always takes the most probable token" },
  { name: "top_p", own: 0.95, label: "Top p", least: 0, most: 1, hint: "the most probable tokens of this mass together" },
  { name: "top_k", own: 40, label: "Top k", least: -1, most: 2147483647, isInteger: true, hint: "this many most probable tokens; 0 is all" },
  { name: "min_p", own: 0.05, label: "Min p", least: 0, most: 1, hint: "leaves out tokens less probable than this share of the best" },
  { name: "typical_p", label: "Typical p", least: 0, most: 1, hint: "the most typical tokens of this mass together; 1 is off" },
  { name: "max_tokens", label: "Max tokens", least: 1, most: MOST, isInteger: true, hint: "where an answer is cut" },
  { name: "seed", label: "Seed", least: -MOST, most: MOST, isInteger: true, hint: "the same seed gives the same answer" },
  { name: "repetition_penalty", label: "Repetition penalty", least: 0.01, most: 100, hint: "1 is off; for tokens of prompt and answer" },
  { name: "frequency_penalty", label: "Frequency penalty", least: -2, most: 2, hint: "0 is off; for each time in the answer" },
  { name: "presence_penalty", label: "Presence penalty", least: -2, most: 2, hint: "0 is off; for being in the answer at all" },
  { name: "stop", label: "Stop texts", kind: "lines", hint: "one on each line, \\n is a line's end in it; an answer ends before the first" },
  { name: "json_schema", label: "JSON schema", kind: "schema", hint: "the answer is JSON of this schema" },
  { name: "enable_thinking", label: "Thinking", switch: { on: true, off: false }, hint: "for a model that can think before it answers" },
];

/** What is wrong with the text of a parameter, or null. */
export function fault(parameter, text) {
  if (text.trim() === "") return null;
  if (parameter.switch) return faultOfSwitch(parameter, text.trim());
  if (parameter.kind === "lines") return faultOfStops(parameter, text);
  return parameter.kind === "schema" ? faultOfSchema(parameter, text) : faultOfNumber(parameter, text.trim());
}

function faultOfSwitch({ label, switch: choices }, trimmed) {
  const names = Object.keys(choices);
  return names.includes(trimmed) ? null : `${label} must be ${names.join(" or ")}, and not “${trimmed}”.`;
}

function faultOfStops({ label }, text) {
  const stops = stopsOf(text);
  if (stops.length > MOST_STOPS) return `${label} must be ${MOST_STOPS} at most, and not ${stops.length}.`;
  const long = stops.find((stop) => new TextEncoder().encode(stop).length > MOST_STOP_BYTES);
  return long === undefined ? null : `${label} must be of ${MOST_STOP_BYTES} bytes at most each.`;
}

const ESCAPES = { "\\n": "\n", "\\t": "\t", "\\\\": "\\" };

/** The texts of the lines that have some, blanks and all. */
function stopsOf(text) {
  const lines = text.split("\n").filter((line) => line !== "");
  return lines.map((line) => line.replace(/\\[nt\\]/g, (escape) => ESCAPES[escape]));
}

function faultOfSchema({ label }, text) {
  try {
    const schema = JSON.parse(text);
    if (typeof schema === "object" && schema !== null && !Array.isArray(schema)) return null;
  } catch (error) {
    return `${label} must be a JSON object: ${error.message}.`;
  }
  return `${label} must be a JSON object.`;
}

function faultOfNumber({ label, least, most, isInteger }, trimmed) {
  const number = Number(trimmed);
  const isFine = isInteger ? Number.isSafeInteger(number) : Number.isFinite(number);
  if (isFine && number >= least && number <= most) return null;
  const bounds = isInteger && most >= 2147483647 ? `an integer from ${least} on` : `between ${least} and ${most}`;
  const wanted = isInteger && least === -MOST ? "an integer of at most 15 digits" : bounds;
  return `${label} must be ${isInteger ? wanted : `a number ${wanted}`}, and not “${trimmed}”.`;
}

/** What an empty parameter stands for, in words. `defaults` are those that server or model file set, where they are known. */
export function standIn({ name, own }, defaults) {
  const set = defaults?.[name];
  if (set) return `${set.value} (the ${set.from === "model" ? "model" : "server"}'s default)`;
  return defaults && own !== undefined ? `${own}` : "server's default";
}

/**
 * The fields of a request from the texts of the parameters by name, and what is wrong with them. `defaults` are those that server
 * or model file set, where they are known.
 */
export function readParameters(texts, defaults) {
  const fields = {};
  const faults = [];
  for (const parameter of PARAMETERS) {
    const text = texts?.[parameter.name] ?? "";
    const wrong = fault(parameter, text);
    if (wrong) faults.push(wrong);
    else if (text.trim() !== "" && parameter.switch)
      fields.chat_template_kwargs = { ...fields.chat_template_kwargs, [parameter.name]: parameter.switch[text.trim()] };
    else if (text.trim() !== "") Object.assign(fields, fieldsOf(parameter, text));
    else if (parameter.own !== undefined && defaults && !defaults[parameter.name]) fields[parameter.name] = parameter.own;
  }
  return { fields, faults };
}

/** What a request has of a parameter without a fault. */
function fieldsOf({ name, kind }, text) {
  if (kind === "lines") return { [name]: stopsOf(text) };
  if (kind !== "schema") return { [name]: Number(text) };
  return { response_format: { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(text) } } };
}

/** Whether a server goes on with an answer to a request of these fields: the begun one may not fit a form. */
export function mayContinue(fields) {
  return fields.response_format === undefined;
}

/**
 * The body of a chat request. Answers that never came to words are left out, and so is what a model thought before. With
 * `continues` the last answer is to be gone on with.
 */
export function chatRequest({ model, system, messages, fields, continues = false }) {
  const said = messages.filter(({ role, content }) => role !== "assistant" || content !== "");
  const turns = said.map(({ role, content }) => ({ role, content }));
  if (system.trim() !== "") turns.unshift({ role: "system", content: system });
  return {
    ...(model ? { model } : {}),
    messages: turns,
    ...fields,
    ...(continues ? { continue_final_message: true, add_generation_prompt: false } : {}),
    stream: true,
    stream_options: { include_usage: true },
  };
}
