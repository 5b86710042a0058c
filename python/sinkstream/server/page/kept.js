// What this browser keeps of the page: settings and drafts, never the key and never a reply.

const NAME = "sinkstream page";
const MOST = 100;  // values of a part

function read() {
  try {
    return JSON.parse(localStorage.getItem(NAME)) ?? {};
  } catch {  // there is none, or the browser allows none
    return {};
  }
}

export const kept = (part) => read()[part] ?? {};

export function keep(part, values) {
  const found = Object.entries(values).filter(([, value]) => value !== "").slice(-MOST);
  try {
    localStorage.setItem(NAME, JSON.stringify({ ...read(), [part]: Object.fromEntries(found) }));
  } catch {
    // The page works without.
  }
}
