// The parameters of a request that the page offers, and the request itself.

const MOST = Number.MAX_SAFE_INTEGER;

/**
 * Name in the API, label, bounds, and what it does. One with a `switch` is a variable of the chat template, with what its choices
 * are there. A parameter that is left empty is not sent: the server's default counts.
 */
export const PARAMETERS = [
  { name: "temperature", label: "Temperature", least: 0, most: 2, hint: "0 always takes the most probable token" },
  { name: "top_p", label: "Top p", least: 0, most: 1, hint: "the most probable tokens of this mass together" },
  { name: "top_k", label: "Top k", least: -1, most: 2147483647, isInteger: true, hint: "this many most probable tokens; 0 is all" },
  { name: "min_p", label: "Min p", least: 0, most: 1, hint: "leaves out tokens less probable than this share of the best" },
  { name: "max_tokens", label: "Max tokens", least: 1, most: MOST, isInteger: true, hint: "where an answer is cut" },
  { name: "seed", label: "Seed", least: -MOST, most: MOST, isInteger: true, hint: "the same seed gives the same answer" },
  { name: "repetition_penalty", label: "Repetition penalty", least: 0.01, most: 100, hint: "1 is off; for tokens of prompt and answer" },
  { name: "frequency_penalty", label: "Frequency penalty", least: -2, most: 2, hint: "0 is off; for each time in the answer" },
  { name: "presence_penalty", label: "Presence penalty", least: -2, most: 2, hint: "0 is off; for being in the answer at all" },
  { name: "enable_thinking", label: "Thinking", switch: { on: true, off: false }, hint: "for a model that can think before it answers" },
];

/** What is wrong with the text of a parameter, or null. */
export function fault(parameter, text) {
  const trimmed = text.trim();
  if (trimmed === "") return null;
  if (parameter.switch) {
    const choices = Object.keys(parameter.switch);
    return choices.includes(trimmed) ? null : `${parameter.label} must be ${choices.join(" or ")}, and not “${trimmed}”.`;
  }
  const { label, least, most, isInteger } = parameter;
  const number = Number(trimmed);
  const isFine = isInteger ? Number.isSafeInteger(number) : Number.isFinite(number);
  if (isFine && number >= least && number <= most) return null;
  const bounds = isInteger && most >= 2147483647 ? `an integer from ${least} on` : `between ${least} and ${most}`;
  const wanted = isInteger && least === -MOST ? "an integer of at most 15 digits" : bounds;
  return `${label} must be ${isInteger ? wanted : `a number ${wanted}`}, and not “${trimmed}”.`;
}

/** The fields of a request from the texts of the parameters by name, and what is wrong with them. */
export function readParameters(texts) {
  const fields = {};
  const faults = [];
  for (const parameter of PARAMETERS) {
    const text = texts?.[parameter.name] ?? "";
    const wrong = fault(parameter, text);
    if (wrong) faults.push(wrong);
    else if (text.trim() === "") continue;
    else if (parameter.switch) fields.chat_template_kwargs = { ...fields.chat_template_kwargs, [parameter.name]: parameter.switch[text.trim()] };
    else fields[parameter.name] = Number(text);
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
