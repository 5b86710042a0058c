// Receives a reply, also after the connection was lost or the server restarted.

import { Refused, eventsOf, isPassing, request } from "./api.js";

const LONGEST_WAIT_S = 15;  // between two tries to reach the server

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
  own.number = undefined;
  own.isFresh = true;
  Object.assign(own.reply, { content: "", thought: "", offsets: [] });
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
  say(own, "Trying again…");
}

export function cancel({ id }) {
  request(`v1/responses/${id}/cancel`, { method: "POST", body: "{}" }).catch(() => {});
}
