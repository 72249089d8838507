// The parameters of a request that the page offers, and the request itself.

const MOST = Number.MAX_SAFE_INTEGER;

/**
 * Name in the API, label, bounds, and what it does. A parameter that is left empty is not sent, so that the server's default
 * counts; of those that have an `own` value, which `taper chat` has too, that one is sent where the server has no default.
 */
export const PARAMETERS = [
  { name: "temperature", own: 0.8, label: "Temperature", least: 0, most: 2, hint: "0 always takes the most probable token" },
  { name: "top_p", own: 0.95, label: "Top p", least: 0, most: 1, hint: "the most probable tokens of this mass together" },
  { name: "top_k", own: 40, label: "Top k", least: -1, most: 2147483647, isInteger: true, hint: "this many most probable tokens; 0 is all" },
  { name: "min_p", own: 0.05, label: "Min p", least: 0, most: 1, hint: "leaves out tokens less probable than this share of the best" },
  { name: "max_tokens", label: "Max tokens", least: 1, most: MOST, isInteger: true, hint: "where an answer is cut" },
  { name: "seed", label: "Seed", least: -MOST, most: MOST, isInteger: true, hint: "the same seed gives the same answer" },
  { name: "repetition_penalty", label: "Repetition penalty", least: 0.01, most: 100, hint: "1 is off; for tokens of prompt and answer" },
  { name: "frequency_penalty", label: "Frequency penalty", least: -2, most: 2, hint: "0 is off; for each time in the answer" },
  { name: "presence_penalty", label: "Presence penalty", least: -2, most: 2, hint: "0 is off; for being in the answer at all" },
];

/** What is wrong with the text of a parameter, or null. */
export function fault(parameter, text) {
  const trimmed = text.trim();
  if (trimmed === "") return null;
  const { label, least, most, isInteger } = parameter;
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
    else if (text.trim() !== "") fields[parameter.name] = Number(text);
    else if (parameter.own !== undefined && defaults && !defaults[parameter.name]) fields[parameter.name] = parameter.own;
  }
  return { fields, faults };
}

/** The body of a chat request. Answers that never came to words are left out, and so is what a model thought before. */
export function chatRequest({ model, system, messages, fields }) {
  const said = messages.filter(({ role, content }) => role !== "assistant" || content !== "");
  const turns = said.map(({ role, content }) => ({ role, content }));
  if (system.trim() !== "") turns.unshift({ role: "system", content: system });
  return {
    ...(model ? { model } : {}),
    messages: turns,
    ...fields,
    stream: true,
    stream_options: { include_usage: true },
  };
}
