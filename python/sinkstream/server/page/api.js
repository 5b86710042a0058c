// Requests to this server, and the events of a reply. Keeps the key, in memory only.

let key = "";

export const hasKey = () => key !== "";
export function useKey(given) { key = given; }

export class Refused extends Error {
  constructor(status, error) {
    super(error.message ?? `The server answered with status ${status}.`);
    this.status = status;
    this.code = error.code;
  }
}

// The server is there soon: it loads, shuts down, or its store is slow.
export const isPassing = (error) => !(error instanceof Refused) || error.status === 503;

export async function request(url, options = {}) {
  const headers = {};
  if (key) headers.authorization = `Bearer ${key}`;
  if (options.body) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(url, { ...options, headers, cache: "no-store", redirect: "error" });
  } catch {
    throw new Error("The server cannot be reached.");
  }
  if (response.ok) return response;
  const { error = {} } = await response.json().catch(() => ({}));
  if (response.status === 401) dispatchEvent(new Event("locked"));
  throw new Refused(response.status, error);
}

export const get = async (url) => (await request(url)).json();

export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part.startsWith(": ")) yield { comment: part.slice(2) };
      else yield { data: part.slice(part.indexOf("data: ") + 6) };
    }
  }
}

export async function turnsOf(id, after = "") {
  const { data, has_more: more, last_id: last } = await get(`v1/sessions/${id}/turns${after}`);
  const own = data.map((turn) => ({ ...turn, session: id }));
  return more ? [...own, ...await turnsOf(id, `?after=${last}`)] : own;
}
