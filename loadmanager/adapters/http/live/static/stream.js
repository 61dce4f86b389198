// The events of the sidecar that serves this page. EventSource cannot send a token, so this reads
// the stream by fetch; it asks again whenever a stream ends.

const SHORTEST_WAIT_MS = 1000;
const LONGEST_WAIT_MS = 10000;
const SILENCE_MS = 20000;

const CONTROLS =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const escaped = (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`;
const visible = (_, value) => (typeof value === "string" ? value.replace(CONTROLS, escaped) : value);

export class Unauthorized extends Error {}

// The token is kept here alone, and gone with the page.
let token = "";
export function useToken(text) {
  token = text.trim();
}
export function hasToken() {
  return token !== "";
}
export function headers() {
  return token ? { Authorization: `Bearer ${token}` } : {};
}

export async function reasonOf(response) {
  try {
    return (await response.json()).reason ?? response.statusText;
  } catch {
    return `${response.status} ${response.statusText}`;
  }
}

export function follow({ onEvent, onLost, onUnauthorized }) {
  let aborting = new AbortController();
  let wake = () => {};
  let waitMs = SHORTEST_WAIT_MS;

  async function once() {
    aborting = new AbortController();
    let silence = setTimeout(() => aborting.abort(), SILENCE_MS);
    try {
      const response = await fetch("/live/events", {
        headers: headers(), cache: "no-store", signal: aborting.signal,
      });
      if (response.status === 401 || response.status === 403) throw new Unauthorized(await reasonOf(response));
      if (!response.ok) throw new Error(await reasonOf(response));
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        clearTimeout(silence);
        silence = setTimeout(() => aborting.abort(), SILENCE_MS);
        text += value;
        const blocks = text.split("\n\n");
        text = blocks.pop();
        for (const block of blocks) {
          const [kind, data] = block.split("\n");
          waitMs = SHORTEST_WAIT_MS;
          if (kind === "event: end") return;
          onEvent(kind.slice("event: ".length), JSON.parse(data.slice("data: ".length), visible));
        }
      }
    } finally {
      clearTimeout(silence);
    }
  }

  async function forever() {
    for (;;) {
      try {
        await once();
        waitMs = SHORTEST_WAIT_MS / 10;
      } catch (error) {
        if (error instanceof Unauthorized) {
          onUnauthorized(error.message);
          waitMs = LONGEST_WAIT_MS;
        } else {
          onLost(error.name === "AbortError" ? "no data received" : error.message);
        }
      }
      await new Promise((resolve) => {
        wake = resolve;
        setTimeout(resolve, waitMs);
      });
      waitMs = Math.min(Math.max(2 * waitMs, SHORTEST_WAIT_MS), LONGEST_WAIT_MS);
    }
  }

  forever();
  return {
    again() {
      aborting.abort();
      waitMs = SHORTEST_WAIT_MS;
      wake();
    },
  };
}

// Asks the leader, by way of this sidecar. Resolves to {status, value}.
export async function ask(path, method = "GET") {
  const response = await fetch(path, {
    method, cache: "no-store", redirect: "error",
    headers: { ...headers(), "X-Loadmanager-Forward": "page" },
  });
  const text = await response.text();
  let value = null;
  try {
    value = text ? JSON.parse(text, visible) : null;
  } catch {
    value = text;
  }
  if (!response.ok) throw new Error(value?.reason ?? `${response.status} ${response.statusText}`);
  return value;
}
