// The page: the list of conversations, the open one, and what its buttons do.

import { listModels, streamChat } from "./api.mjs";
import { Bounded, Conversations, exported, imported, isFull, isOfUse, newConversation, titleOf } from "./conversations.mjs";
import { button, byId, grow, make } from "./dom.mjs";
import { LiveView } from "./live.mjs";
import { MessageView } from "./message.mjs";
import { chatRequest, mayContinue, readParameters } from "./parameters.mjs";
import { Settings } from "./settings.mjs";
import { Stopwatch } from "./speed.mjs";

/** Milliseconds between two drawings of an answer that is written, at least; and between two that are kept. */
const DRAW_MS = 40;
const KEEP_MS = 1000;
/** Drawing takes this share of the time at most, however long an answer is. */
const DRAW_SHARE = 0.25;
const ASK_MODELS_MS = 2000;
const TOAST_MS = 10_000;
/** Pixels from the end within which a reader is taken to follow what is written. */
const NEAR_END = 60;

// Browsers may keep nothing from some places and in some modes; the page works all the same until it is closed.
function storageOr(name) {
  try {
    if (isOfUse(window[name])) return window[name];
  } catch {
    // It is not there, or may not be asked for.
  }
  notice("This browser keeps nothing here: conversations are lost with the page.");
  return new Fleeting();
}

/** A `Storage` that ends with the page. */
class Fleeting {
  #items = new Map();

  get length() {
    return this.#items.size;
  }

  key(place) {
    return [...this.#items.keys()][place] ?? null;
  }

  getItem(key) {
    return this.#items.get(key) ?? null;
  }

  setItem(key, value) {
    this.#items.set(key, `${value}`);
  }

  removeItem(key) {
    this.#items.delete(key);
  }
}

function showLoss(error) {
  const reason = isFull(error) ? "has no room left: nothing more is kept until something is deleted" : `keeps nothing more (${error.name})`;
  notice(`The browser ${reason}. An export has all of it.`);
}

const local = new Bounded(storageOr("localStorage"), showLoss);
const conversations = new Conversations(local);
const settings = new Settings(local, new Bounded(storageOr("sessionStorage"), showLoss), showState);
const live = new LiveView(() => settings.key);
/** What is being answered, by the conversation's id. */
const runs = new Map();
/** The defaults of sampling that are set for each model, by its id. */
const defaults = new Map();
/** The open conversation; in the list once something is said. */
let open = conversations.list()[0] ?? newConversation(settings.system, Date.now());
/** Views of its messages, in their order. */
let views = [];
/** Whether another tab has changed it since it was shown. */
let isStale = false;

// ---- notices ----

function notice(text) {
  const element = byId("notice");
  element.textContent = text;
  element.hidden = text === "";
}

let toastTimer;
/** Says what was done, and offers to undo it. */
function toast(text, undo) {
  const element = byId("toast");
  const hide = () => (element.hidden = true);
  const parts = [make("span", {}, text)];
  if (undo) {
    const act = () => {
      hide();
      undo();
    };
    parts.push(button("Undo", act, { id: "undo" }));
  }
  element.replaceChildren(...parts, button("✕", hide, { title: "Close", aria: { label: "Close" } }));
  element.hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(hide, TOAST_MS);
}

// ---- conversations ----

function save(conversation) {
  conversation.title = titleOf(conversation);
  conversations.save(conversation);
}

function touch(conversation) {
  conversation.updated = Date.now();
  save(conversation);
}

function showList() {
  const items = conversations.list().map((conversation) => {
    const { id, title } = conversation;
    const name = title || "Untitled";
    const choose = button(name, () => openConversation(id), { className: "choose", title: name });
    if (id === open.id) choose.setAttribute("aria-current", "true");
    const label = `Delete “${name}”`;
    const remove = button("✕", () => removeConversation(id), { className: "quiet remove", title: label, aria: { label } });
    return make("li", { className: runs.has(id) ? "running" : "" }, choose, remove);
  });
  byId("conversations").replaceChildren(...items);
  byId("export").disabled = items.length === 0;
}

function openConversation(id) {
  open = conversations.get(id) ?? newConversation(settings.system, Date.now());
  showMenu(false);
  if (location.hash === "#live") location.hash = "#chat";
  showConversation();
  byId("prompt").focus();
}

function removeConversation(id) {
  stop(id);
  const conversation = conversations.get(id);
  conversations.remove(id);
  if (id === open.id) open = conversations.list()[0] ?? newConversation(settings.system, Date.now());
  showConversation();
  toast("The conversation is deleted.", () => {
    save(conversation);
    openConversation(id);
  });
}

/** Changes the messages of the open conversation, in a way that can be undone. */
function change(what, edit) {
  const conversation = open;
  stop(conversation.id);
  const before = structuredClone(conversation.messages);
  edit(conversation);
  touch(conversation);
  showConversation();
  if (!what) return;
  toast(what, () => {
    stop(conversation.id);
    conversation.messages = before;
    touch(conversation);
    openConversation(conversation.id);
  });
}

function exportAll() {
  const text = exported(conversations.list());
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const day = new Date().toISOString().slice(0, 10);
  make("a", { href: url, download: `taper-conversations-${day}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(url), TOAST_MS);
}

async function importFile(file) {
  try {
    const found = imported(await file.text(), (id) => conversations.get(id) !== undefined);
    found.forEach(save);
    if (found.length > 0) openConversation(found[0].id);
    toast(`${found.length} conversation${found.length === 1 ? "" : "s"} imported.`);
  } catch (error) {
    notice(error.message);
  }
}

// ---- the open conversation ----

function showConversation() {
  drawConversation();
  scrollToEnd();
}

/** Shows what another tab made of the open conversation, where the reader is; not over an edit, but after it. */
function refresh() {
  const log = byId("log");
  isStale = log.querySelector("textarea.edit") !== null;
  if (isStale) return showList();
  const { scrollTop } = log;
  followed(() => {
    drawConversation();
    log.scrollTop = scrollTop;
  });
}

function drawConversation() {
  isStale = false;
  views = open.messages.map((message, place) => viewOf(open, message, place));
  byId("messages").replaceChildren(...views.map(({ element }) => element));
  const isRunning = runs.has(open.id);
  views.forEach((view, place) => view.update(isRunning && place === views.length - 1));
  byId("empty").hidden = views.length > 0;
  byId("clear").hidden = views.length === 0;
  byId("system").value = open.system;
  byId("system-shown").hidden = open.system.trim() === "";
  byId("system-text").textContent = open.system;
  showList();
  showState();
}

function viewOf(conversation, message, place) {
  const isLast = place === conversation.messages.length - 1;
  const actions = {};
  if (message.role === "user") {
    actions.edit = (text) => ask(conversation, text, place);
    actions.left = () => {
      if (isStale) refresh();
    };
    actions.remove = () => change("Deleted.", ({ messages }) => messages.splice(place));
    if (isLast) actions.answer = () => answer(conversation);
  } else if (isLast) {
    actions.answer = () => {
      if (!isReady()) return;
      const what = message.content === "" ? "" : "Answering again.";
      change(what, ({ messages }) => messages.splice(place));
      answer(conversation);
    };
    actions.mayGoOn = () => mayContinue(readParameters(settings.parameters).fields);
    actions.goOn = () => {
      if (actions.mayGoOn()) answer(conversation, message);
      else notice("An answer with a JSON schema cannot be continued. See the settings.");
    };
  }
  return new MessageView(message, actions);
}

/** Whether a request may be sent; shows why not. */
function isReady() {
  const { faults } = readParameters(settings.parameters);
  if (faults.length > 0) notice(`${faults.join(" ")} See the settings.`);
  return faults.length === 0;
}

/** Says `text` in the place of a message and those after it, or at the end, and has it answered. */
function ask(conversation, text, place = conversation.messages.length) {
  if (!isReady()) return false;
  stop(conversation.id);
  conversation.messages.splice(place, Infinity, { role: "user", content: text });
  answer(conversation);
  return true;
}

/** Has the open conversation answered as it stands, or goes on with its last answer, `begun`. */
async function answer(conversation, begun) {
  if (!isReady()) return;
  notice("");
  const model = byId("model").value;
  const { fields } = readParameters(settings.parameters, defaults.get(model));
  const { system, messages } = conversation;
  const body = chatRequest({ model, system, messages, fields, continues: begun !== undefined });
  const message = begun ?? { role: "assistant", content: "" };
  for (const name of ["error", "note", "speed"]) delete message[name];
  message.unfinished = true;
  const controller = new AbortController();
  if (!begun) messages.push(message);
  runs.set(conversation.id, controller);
  touch(conversation);
  showConversation();
  byId("status").textContent = "The answer is being written.";
  const drawing = new Drawing(conversation, message);
  const watch = new Stopwatch(performance.now());
  try {
    for await (const chunk of streamChat(body, { key: settings.key, signal: controller.signal })) {
      watch.take(chunk, take(message, chunk), performance.now());
      drawing.ask();
    }
    delete message.unfinished;
  } catch (error) {
    if (!controller.signal.aborted) message.error = explained(error);
    // The server has another model now.
    if (error.code === "model_not_found") showModels();
  }
  drawing.end();
  const speed = watch.line();
  if (speed) message.speed = speed;
  // Stopped, and perhaps begun anew since.
  if (runs.get(conversation.id) === controller) runs.delete(conversation.id);
  if (conversations.get(conversation.id) !== conversation) return;
  save(conversation);
  if (conversation === open) finishShown(message);
  showList();
  showState();
}

/** Adds a chunk to an answer; whether it brought text. */
function take(message, chunk) {
  const choice = chunk.choices?.[0];
  const reasoning = choice?.delta?.reasoning_content ?? choice?.delta?.reasoning ?? "";
  const content = choice?.delta?.content ?? "";
  if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning;
  message.content += content;
  if (choice?.finish_reason === "length") message.note = "cut at the limit of tokens";
  return reasoning !== "" || content !== "";
}

function explained({ message, status, retryAfter }) {
  if (status === 401) return `${message} The API key is in the settings.`;
  return retryAfter ? `${message} (It asks to wait for ${retryAfter} s.)` : message;
}

function finishShown(message) {
  const place = open.messages.indexOf(message);
  if (place < 0) return;
  followed(() => views[place]?.update(false));
  byId("status").textContent = message.error ? "" : `Answer: ${message.content}`;
}

/** Ends what a conversation is being answered; the server hears that nobody reads any more. */
function stop(id) {
  runs.get(id)?.abort();
  runs.delete(id);
}

/** Draws and keeps an answer while it is written, not more often than is of use. */
class Drawing {
  #conversation;
  #message;
  #timer = null;
  #pause = DRAW_MS;
  #kept = performance.now();

  constructor(conversation, message) {
    this.#conversation = conversation;
    this.#message = message;
  }

  ask() {
    this.#timer ??= setTimeout(() => this.#draw(), this.#pause);
  }

  end() {
    clearTimeout(this.#timer);
  }

  #draw() {
    this.#timer = null;
    const begun = performance.now();
    const place = this.#conversation === open ? open.messages.indexOf(this.#message) : -1;
    if (place >= 0) followed(() => views[place]?.update(true));
    const now = performance.now();
    this.#pause = Math.max(DRAW_MS, (now - begun) / DRAW_SHARE);
    if (now - this.#kept > KEEP_MS && conversations.get(this.#conversation.id) === this.#conversation) {
      this.#kept = now;
      save(this.#conversation);
    }
  }
}

/** Changes what is shown, and stays at the end if that is where the reader is. */
function followed(draw) {
  const log = byId("log");
  const isNear = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_END;
  draw();
  if (isNear) log.scrollTop = log.scrollHeight;
}

function scrollToEnd() {
  const log = byId("log");
  log.scrollTop = log.scrollHeight;
}

// ---- the rest of the page ----

function showState() {
  const isRunning = runs.has(open.id);
  byId("stop").hidden = !isRunning;
  byId("send").hidden = isRunning;
  byId("send").disabled = byId("prompt").value.trim() === "";
}

function send() {
  const field = byId("prompt");
  const text = field.value;
  if (text.trim() === "" || runs.has(open.id)) return;
  if (!ask(open, text)) return;
  field.value = "";
  grow(field);
  showState();
}

function stopShown() {
  stop(open.id);
  showState();
  byId("prompt").focus();
}

function showMenu(isShown) {
  document.body.classList.toggle("menu-open", isShown);
  byId("menu").setAttribute("aria-expanded", isShown);
}

function showView() {
  const isLive = location.hash === "#live";
  byId("chat").hidden = isLive;
  byId("live").hidden = !isLive;
  for (const [id, isCurrent] of [["to-chat", !isLive], ["to-live", isLive]]) {
    if (isCurrent) byId(id).setAttribute("aria-current", "page");
    else byId(id).removeAttribute("aria-current");
  }
  showMenu(false);
  if (isLive) live.show();
  else scrollToEnd();
}

let modelsTimer;
/** Asks for the models until the server has one. */
async function showModels() {
  clearTimeout(modelsTimer);
  const choice = byId("model");
  try {
    const models = await listModels(settings.key);
    const ids = models.map(({ id }) => id);
    defaults.clear();
    for (const model of models) defaults.set(model.id, model.defaults);
    const wanted = ids.includes(settings.model) ? settings.model : ids[0];
    choice.replaceChildren(...ids.map((id) => make("option", { value: id, selected: id === wanted }, id)));
    settings.showDefaults(defaults.get(choice.value));
    byId("state").textContent = "";
  } catch (error) {
    byId("state").textContent = explained({ message: error.message, status: error.status });
    // A key that is wrong is not right two seconds later; it is tried when it changes.
    if (error.status !== 401 && error.status !== 403) modelsTimer = setTimeout(showModels, ASK_MODELS_MS);
  }
  choice.disabled = choice.options.length === 0;
}

function connect() {
  const prompt = byId("prompt");
  prompt.oninput = () => {
    grow(prompt);
    showState();
  };
  prompt.onkeydown = (event) => {
    // Enter that ends the input of a character (Japanese, Chinese) is not meant for us.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  byId("send").onclick = send;
  byId("stop").onclick = stopShown;
  byId("new").onclick = () => openConversation(null);
  byId("clear").onclick = () => change("The messages are deleted.", (conversation) => (conversation.messages = []));
  byId("export").onclick = exportAll;
  byId("import").onclick = () => byId("file").click();
  byId("file").onchange = async ({ target }) => {
    if (target.files[0]) await importFile(target.files[0]);
    target.value = "";
  };
  byId("menu").onclick = () => showMenu(!document.body.classList.contains("menu-open"));
  byId("shade").onclick = () => showMenu(false);
  byId("model").onchange = ({ target }) => {
    settings.model = target.value;
    settings.showDefaults(defaults.get(target.value));
  };
  byId("to-settings").onclick = () => byId("settings").showModal();
  byId("settings-done").onclick = () => byId("settings").close();
  byId("settings").onclose = () => notice("");
  byId("key").addEventListener("change", showModels);
  byId("system").oninput = ({ target }) => {
    open.system = target.value;
    settings.system = target.value;
    if (conversations.get(open.id)) save(open);
    byId("system-shown").hidden = open.system.trim() === "";
    byId("system-text").textContent = open.system;
  };
  document.onkeydown = (event) => {
    if (event.key !== "Escape" || byId("settings").open) return;
    if (document.body.classList.contains("menu-open")) showMenu(false);
    else if (runs.has(open.id)) stopShown();
  };
  window.onhashchange = showView;
  // An answer that is being written is kept as far as it has come.
  window.onpagehide = () => {
    for (const id of [...runs.keys()]) {
      if (conversations.get(id)) save(conversations.get(id));
      stop(id);
    }
  };
  window.onstorage = ({ key }) => {
    const id = Conversations.idOf(key);
    if (!id || runs.has(id)) return;
    conversations.reload(id);
    if (id !== open.id) return showList();
    open = conversations.get(id) ?? open;
    refresh();
  };
}

connect();
showConversation();
showView();
showModels();
