// Finds and makes elements, and what their buttons do alike.

export const $ = (id) => document.getElementById(id);

export function make(name, text = "", className = "") {
  const element = document.createElement(name);
  if (text) element.textContent = text;
  if (className) element.className = className;
  return element;
}

export function action(label, act, className) {
  const button = make("button", label, className);
  button.type = "button";
  button.addEventListener("click", act);
  return button;
}

// Copies a text, and says so on the button.
export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // a page that is not from this machine has no clipboard without TLS
    const field = make("textarea", text, "hidden");
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
    button.focus();
  }
  button.classList.add("done");
  setTimeout(() => button.classList.remove("done"), 1500);
}

// Does something, and shows why it failed.
export async function attempt(act) {
  try {
    await act();
    showError("");
  } catch (error) {
    showError(error.message);
  }
}

export function showError(text) {
  $("error").textContent = text;
}
