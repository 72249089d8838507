// One message of a conversation on the page.

import { copyButton } from "./clipboard.mjs";
import { againLabel, isCut } from "./conversations.mjs";
import { button, grow, make } from "./dom.mjs";
import { showMarkdown } from "./markdown.mjs";

/**
 * A message's element. `actions` are what its buttons do: `edit(text)`, `remove()`, `answer()` (again, or at last), `goOn()`
 * (with an answer that is cut, where `mayGoOn()`); those that do not fit the message are left out. `left()` is called when an edit is given up.
 */
export class MessageView {
  element;
  #message;
  #actions;
  #body = make("div", { className: "body" });
  #reasoning = make("div", { className: "reasoning-text" });
  #reasoningBox;
  #foot = make("div", { className: "foot" });

  constructor(message, actions) {
    this.#message = message;
    this.#actions = actions;
    const isUser = message.role === "user";
    const who = make("span", { className: "unseen" }, isUser ? "You: " : "Answer: ");
    this.#reasoningBox = make("details", { className: "reasoning", hidden: true }, make("summary", {}, "Reasoning"), this.#reasoning);
    this.element = make("li", { className: `message ${message.role}` }, who, this.#reasoningBox, this.#body, this.#foot);
  }

  /** Shows the message as it is now; while it is written, without what can be done with it. */
  update(isWritten) {
    const { role, content, reasoning, error, note, speed, unfinished } = this.#message;
    this.element.classList.toggle("written", isWritten);
    this.element.setAttribute("aria-busy", isWritten);
    if (role === "user") this.#body.textContent = content;
    else showMarkdown(this.#body, content);
    this.#body.hidden = content === "" && !isWritten;
    this.#reasoningBox.hidden = !reasoning;
    if (reasoning) showMarkdown(this.#reasoning, reasoning);
    this.#foot.replaceChildren();
    if (isWritten) return;
    if (error) this.#foot.append(make("p", { className: "error", role: "alert" }, error));
    const line = [speed, unfinished && !error ? "stopped" : "", note].filter(Boolean).join(" · ");
    if (line) this.#foot.append(make("p", { className: "speed" }, line));
    this.#foot.append(this.#buttons());
  }

  #buttons() {
    const { edit, remove, answer, goOn, mayGoOn } = this.#actions;
    const { content } = this.#message;
    const row = make("div", { className: "actions" });
    if (goOn && mayGoOn() && isCut(this.#message)) row.append(button("Continue", goOn, { dataset: { action: "continue" } }));
    if (answer) {
      row.append(button(againLabel(this.#message), answer, { dataset: { action: "answer" } }));
    }
    if (content !== "") row.append(copyButton(() => this.#message.content));
    if (edit) row.append(button("Edit", () => this.#edit(edit), { dataset: { action: "edit" } }));
    if (remove) {
      const title = "Delete this message and those after it";
      row.append(button("Delete", remove, { title, dataset: { action: "remove" } }));
    }
    return row;
  }

  /** Puts a field in the message's place until it is sent or left. */
  #edit(send) {
    const field = make("textarea", { className: "edit", value: this.#message.content, rows: 1, aria: { label: "The message" } });
    const leave = () => {
      this.update(false);
      this.#foot.querySelector('[data-action="edit"]')?.focus();
      this.#actions.left?.();
    };
    const submit = () => {
      if (field.value.trim() !== "") send(field.value);
    };
    field.oninput = () => grow(field);
    field.onkeydown = (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        submit();
      } else if (event.key === "Escape") {
        event.stopPropagation();
        leave();
      }
    };
    this.#body.replaceChildren(field);
    const buttons = [button("Send", submit, { className: "main", dataset: { action: "resend" } }), button("Cancel", leave)];
    this.#foot.replaceChildren(make("div", { className: "actions" }, ...buttons));
    grow(field);
    field.focus();
  }
}
