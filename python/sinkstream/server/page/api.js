// Requests to this server, and replies that arrive, also over outages: their events, and where their
// tokens are. Keeps the key, in memory only.

const LONGEST_WAIT_S = 15;  // between two tries to reach the server
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

async function* eventsOf(response) {
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

// The message of a reply; `given` is another whose text it goes on from.
export const replyAfter = ({ content = "", begin, offsets, odds } = {}) => ({
  role: "assistant", content, thought: "", begin: offsets ? begin : undefined,
  offsets: [...(offsets ?? [])], odds: [...(odds ?? [])],
});

// `own`: {id, number, reply, isStopped}: what is known of the reply. Calls `take` with each event.
export async function receive(own, url, how, { take, say, warn }) {
  for (let tries = 0; ; tries += 1) {
    const number = own.number;
    try {
      const response = await request(url, how);
      own.turn.pinned_tokens ||= Number(response.headers.get("x-sinkstream-pinned"));
      warn(own, response.headers.get("x-sinkstream-warning") ?? "");
      for await (const { data, comment } of eventsOf(response)) {
        if (data === "[DONE]") return;
        if (data) take(own, JSON.parse(data));
        else say(own, comment.startsWith("prefill") ? `Reading, ${comment}` : comment);
      }
    } catch (error) {
      const isRestarted = error.status === 400 && own.number !== undefined;
      if (isRestarted) startAgain(own);
      else if (error instanceof Refused && (own.id === undefined || !isPassing(error))) throw error;
    }
    if (!own.id) throw new Error("The connection was lost.");
    if (own.number !== number) tries = 0;  // each outage counts for itself
    await pause(own, say, Math.min(2 ** tries, LONGEST_WAIT_S));
    const after = own.number === undefined ? "" : `&starting_after=${own.number}`;
    url = `v1/responses/${own.id}?stream=true${after}`;
    how = {};
  }
}

// After a restart, the server sends the whole text once more.
function startAgain(own) {
  own.number = own.generated = undefined;
  own.isFresh = true;
  Object.assign(own.reply, replyAfter(own.given));
}

// Notes how many tokens there are, and the character where each begins: `starts`, if those of the
// latest are known, or else where its delta does.
export function countTokens(own, { input_tokens: read, output_tokens: generated }, starts, capacity) {
  const { turn, reply } = own;
  reply.begin = Math.min(reply.begin ?? read, read);
  reply.end = turn.tokens = read + generated;
  for (const one of turn.messages.slice(0, -1)) {
    one.begin ??= Math.min(own.before, read);
    one.end ??= read;
  }
  const { offsets, content } = reply;
  // What is given may have other tokens.
  if (own.generated === undefined) offsets.length = Math.min(offsets.length, read - reply.begin);
  const count = reply.end - reply.begin;
  while (offsets.length < count) offsets.push(starts.at(offsets.length - count) ?? content.length);
  turn.live_tokens = Math.min(reply.end - 1, capacity);
  turn.total_evicted_tokens = reply.end - 1 - turn.live_tokens;
  const now = performance.now();
  own.from ??= { now, generated };
  const seconds = (now - own.from.now) / 1000;
  if (generated > own.from.generated) own.rate = (generated - own.from.generated) / seconds;
  own.generated = generated;
}

async function pause(own, say, seconds) {
  for (let left = seconds; left > 0; left -= 1) {
    if (own.isStopped) {
      own.isLost = true;
      throw new Error("The server cannot be reached. Reload the page to look for the reply.");
    }
    say(own, `The connection is lost. Trying again in ${left} s`);
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

export function cancel({ id }) {
  request(`v1/responses/${id}/cancel`, { method: "POST", body: "{}" }).catch(() => {});
}
