// Elements of the page.

/** The element with an id. */
export function byId(id) {
  return document.getElementById(id);
}

/** A new element with properties and children; a property in `dataset` or `aria` goes to its attributes. */
export function make(tag, { dataset = {}, aria = {}, role, ...properties } = {}, ...children) {
  const element = document.createElement(tag);
  Object.assign(element, properties);
  Object.assign(element.dataset, dataset);
  for (const [name, value] of Object.entries(aria)) element.setAttribute(`aria-${name}`, value);
  if (role) element.setAttribute("role", role);
  element.append(...children);
  return element;
}

/** A button with words on it. */
export function button(label, onclick, properties = {}) {
  return make("button", { type: "button", className: "quiet", onclick, ...properties }, label);
}

/** Lets a text field be as high as its text; its style sheet bounds it. */
export function grow(field) {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + field.offsetHeight - field.clientHeight}px`;
}
