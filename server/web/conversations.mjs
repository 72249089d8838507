// Conversations and where they are kept: in the browser, one entry each, so that two tabs with two conversations do not
// overwrite each other. A conversation is
// `{ id, title, created, updated, system, messages: [{ role, content, reasoning?, speed?, note?, error?, unfinished? }] }`.

const PREFIX = "taper.conversation.";
const FORMAT = "taper-conversations";
const TITLE_LEN = 60;

/** A conversation without messages; `now` is in milliseconds since 1970. */
export function newConversation(system, now) {
  return { id: crypto.randomUUID?.() ?? randomId(), title: "", created: now, updated: now, system, messages: [] };
}

// Without https, and not on this machine itself, a browser has no randomUUID.
function randomId() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The name in the list: how the first message begins. */
export function titleOf(conversation) {
  const first = conversation.messages.find(({ role }) => role === "user")?.content ?? "";
  const line = first.trim().split("\n", 1)[0];
  const characters = [...line];
  return characters.length > TITLE_LEN ? `${characters.slice(0, TITLE_LEN - 1).join("")}…` : line;
}

/** What the button says that has a message answered. To retry leaves nothing out: an answer that has begun is replaced. */
export function againLabel({ role, content, error }) {
  if (role === "user") return "Answer";
  return error && content === "" ? "Retry" : "Regenerate";
}

/** Whether an answer has words, and there may be more to say: it was stopped, broke off, or reached a limit. */
export function isCut({ role, content, unfinished, note }) {
  return role === "assistant" && content.trim() !== "" && Boolean(unfinished || note);
}

/** Whether an error of a `Storage` says that there is no room. */
export function isFull(error) {
  return error?.name === "QuotaExceededError" || error?.name === "NS_ERROR_DOM_QUOTA_REACHED";
}

/** Whether a `Storage` takes entries, or has some at least that can be read: one that is full, or on a disk that is. */
export function isOfUse(storage) {
  const probe = "taper.probe";
  try {
    storage.setItem(probe, "");
    storage.removeItem(probe);
    return true;
  } catch {
    return storage.length > 0;
  }
}

/** A `Storage` that stays as it is when it takes no more; `failed(error)` is called then, and again only after it took something. */
export class Bounded {
  #storage;
  #failed;
  #hasFailed = false;

  constructor(storage, failed) {
    this.#storage = storage;
    this.#failed = failed;
  }

  get length() {
    return this.#storage.length;
  }

  key(place) {
    return this.#storage.key(place);
  }

  getItem(key) {
    return this.#storage.getItem(key);
  }

  setItem(key, value) {
    try {
      this.#storage.setItem(key, value);
      this.#hasFailed = false;
    } catch (error) {
      // A mistake of the page is none of the storage.
      if (error instanceof TypeError) throw error;
      if (!this.#hasFailed) this.#failed(error);
      this.#hasFailed = true;
    }
  }

  removeItem(key) {
    this.#storage.removeItem(key);
    this.#hasFailed = false;
  }
}

/** Where conversations are kept; `storage` is a `Storage`. */
export class Conversations {
  #storage;
  #open = new Map();

  constructor(storage) {
    this.#storage = storage;
    for (let place = 0; place < storage.length; place++) {
      const id = Conversations.idOf(storage.key(place));
      if (id) this.reload(id);
    }
  }

  /** All of them, those that changed last first. */
  list() {
    return [...this.#open.values()].sort((a, b) => b.updated - a.updated);
  }

  /** One of them; the same object each time. */
  get(id) {
    return this.#open.get(id);
  }

  /** Keeps a conversation as it is now. */
  save(conversation) {
    this.#open.set(conversation.id, conversation);
    this.#storage.setItem(PREFIX + conversation.id, JSON.stringify(conversation));
  }

  /** Forgets one. */
  remove(id) {
    this.#open.delete(id);
    this.#storage.removeItem(PREFIX + id);
  }

  /** Takes one as the storage has it, after another tab has changed it. What cannot be read is left where it is. */
  reload(id) {
    const text = this.#storage.getItem(PREFIX + id);
    const before = this.#open.get(id);
    this.#open.delete(id);
    if (text === null) return;
    try {
      this.#open.set(id, Object.assign(before ?? {}, checked(JSON.parse(text))));
    } catch (error) {
      console.warn(`conversation ${id} cannot be read: ${error.message}`);
    }
  }

  /** The id of the conversation of a key of the storage, if it is one's. */
  static idOf(key) {
    return key?.startsWith(PREFIX) ? key.slice(PREFIX.length) : null;
  }
}

/** Conversations as the text of a file. */
export function exported(conversations) {
  return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 2);
}

/** The conversations of such a text, with ids of their own where `isTaken`. Throws an error that says what is wrong. */
export function imported(text, isTaken) {
  let file;
  try {
    file = JSON.parse(text);
  } catch (error) {
    throw new Error(`The file is no JSON: ${error.message}`);
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) {
    throw new Error(`The file holds no conversations: its format must be “${FORMAT}”.`);
  }
  if (file.version !== 1) throw new Error(`The file is of version ${show(file.version)}, and this page reads version 1.`);
  const ids = new Set();
  return file.conversations.map((item, index) => {
    const conversation = checked(item, `conversations[${index}]`);
    if (isTaken(conversation.id) || ids.has(conversation.id)) conversation.id = newConversation("", 0).id;
    ids.add(conversation.id);
    return conversation;
  });
}

/** A conversation with the fields that it may have and no others. */
function checked(item, path = "conversation") {
  const want = (value, type, name) => {
    if (typeof value !== type) throw new Error(`${path}.${name} must be a ${type}, and is ${show(value)}.`);
    return value;
  };
  if (!Array.isArray(item?.messages)) throw new Error(`${path}.messages must be an array.`);
  const messages = item.messages.map((message, index) => {
    const at = `messages[${index}]`;
    const role = message?.role;
    if (role !== "user" && role !== "assistant") {
      throw new Error(`${path}.${at}.role must be user or assistant, and is ${show(role)}.`);
    }
    const kept = { role, content: want(message.content, "string", `${at}.content`) };
    for (const name of ["reasoning", "speed", "note", "error"]) {
      if (message[name] !== undefined) kept[name] = want(message[name], "string", `${at}.${name}`);
    }
    if (message.unfinished) kept.unfinished = true;
    return kept;
  });
  const id = want(item.id, "string", "id");
  if (id === "") throw new Error(`${path}.id is empty.`);
  const conversation = {
    id,
    title: want(item.title ?? "", "string", "title"),
    created: want(item.created ?? 0, "number", "created"),
    updated: want(item.updated ?? 0, "number", "updated"),
    system: want(item.system ?? "", "string", "system"),
    messages,
  };
  return { ...conversation, title: conversation.title || titleOf(conversation) };
}

function show(value) {
  return (JSON.stringify(value) ?? "missing").slice(0, 80);
}
