// What a user sets: parameters and the model (kept in the browser), and the API key (kept until the tab is closed).

import { byId, make } from "./dom.mjs";
import { fault, PARAMETERS, standIn } from "./parameters.mjs";

const SETTINGS = "taper.settings";
const KEY = "taper.key";

/** The settings, and the fields of the dialog that change them. */
export class Settings {
  #storage;
  #session;
  #kept;

  /** `storage` and `session` are `Storage`s; `changed` is called after every change. */
  constructor(storage, session, changed) {
    this.#storage = storage;
    this.#session = session;
    this.#kept = { parameters: {}, model: "", system: "", ...read(storage) };
    for (const parameter of PARAMETERS) byId("parameters").append(this.#field(parameter, changed));
    const key = byId("key");
    key.value = this.key;
    key.onchange = () => {
      // What cannot stand in a header would look like a server that is not there.
      const isFine = /^[\x21-\x7e]*$/.test(key.value.trim());
      byId("key-fault").textContent = isFine ? "" : "A key has no spaces and no letters beyond ASCII.";
      key.setAttribute("aria-invalid", !isFine);
      if (isFine) this.#session.setItem(KEY, key.value.trim());
      changed();
    };
  }

  /** The texts of the parameters by name. */
  get parameters() {
    return this.#kept.parameters;
  }

  /** The model that was chosen last. */
  get model() {
    return this.#kept.model;
  }

  set model(id) {
    this.#keep({ model: id });
  }

  /** The system prompt that a new conversation begins with. */
  get system() {
    return this.#kept.system;
  }

  set system(text) {
    this.#keep({ system: text });
  }

  /** The API key, or an empty text. */
  get key() {
    return this.#session.getItem(KEY) ?? "";
  }

  /** Shows what empty parameters stand for with a model of these defaults. */
  showDefaults(defaults) {
    const numbers = PARAMETERS.filter((parameter) => !parameter.kind && !parameter.switch);
    for (const parameter of numbers) byId(idOf(parameter)).placeholder = standIn(parameter, defaults);
  }

  #keep(change) {
    this.#kept = { ...this.#kept, ...change };
    this.#storage.setItem(SETTINGS, JSON.stringify(this.#kept));
  }

  #field(parameter, changed) {
    const { name, label, hint } = parameter;
    const id = idOf(parameter);
    const input = inputOf(id, parameter);
    input.value = this.#kept.parameters[name] ?? "";
    input.setAttribute("aria-describedby", `${id}-hint`);
    const under = make("p", { id: `${id}-hint`, className: "hint", role: "status" });
    const judge = () => {
      const wrong = fault(parameter, input.value);
      input.setAttribute("aria-invalid", wrong !== null);
      under.textContent = wrong ?? hint;
      under.classList.toggle("error", wrong !== null);
    };
    judge();
    input.oninput = () => {
      judge();
      this.#keep({ parameters: { ...this.#kept.parameters, [name]: input.value } });
      changed();
    };
    return make("div", { className: "field" }, make("label", { htmlFor: id }, label), input, under);
  }
}

function idOf({ name }) {
  return `parameter-${name}`;
}

function inputOf(id, parameter) {
  if (parameter.switch) return choiceOf(id, parameter);
  if (parameter.kind) return make("textarea", { id, rows: 3, spellcheck: false, placeholder: "none" });
  const inputMode = parameter.isInteger ? "numeric" : "decimal";
  return make("input", { id, type: "text", inputMode, autocomplete: "off", placeholder: standIn(parameter) });
}

function choiceOf(id, parameter) {
  const choices = Object.keys(parameter.switch).map((choice) => make("option", { value: choice }, choice));
  return make("select", { id }, make("option", { value: "" }, "model's default"), ...choices);
}

function read(storage) {
  try {
    const { parameters, model, system } = JSON.parse(storage.getItem(SETTINGS) ?? "{}");
    const texts = Object.entries(parameters ?? {}).filter(([, text]) => typeof text === "string");
    return { parameters: Object.fromEntries(texts), model: `${model ?? ""}`, system: `${system ?? ""}` };
  } catch {
    return {};
  }
}
