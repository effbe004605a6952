// Server-sent events: the whole state at connect, then what changed; again after every loss.
const SILENCE_MS = 3500; // The control plane says something every second.
const AGAIN_MS = 1000;
const REFUSED_MS = 10000;
const SECTIONS = ["models", "instances", "proxies"];

export function connect({ access, onState, onLost, onRefused }) {
  let state = null;
  let heardAt = null;
  let openedAt = null;
  let opened = null;
  let again = null;

  async function open() {
    again = null;
    openedAt = performance.now();
    const mine = (opened = new AbortController());
    try {
      await access.load(mine.signal);
      if (!access.is.may_look) return refuse(access.is.why);
      // Not an EventSource: that one cannot say who asks.
      const answer = await access.fetch("api/stream", { signal: mine.signal });
      if (answer.status === 401 || answer.status === 403) return refuse((await answer.json()).error);
      if (!answer.ok) throw new Error(answer.status);
      for await (const [name, data] of messages(answer.body)) {
        if (name === "state") state = { facts: {}, models: new Map(), instances: new Map(), proxies: new Map() };
        take(JSON.parse(data), name === "state");
      }
    } catch {
      // Below.
    }
    if (!mine.signal.aborted) lose();
  }

  function take(message, isWhole) {
    heardAt = performance.now();
    state.facts = message.facts;
    const changed = { isWhole, models: [], instances: [], proxies: [] };
    for (const section of SECTIONS) {
      for (const [key, value] of Object.entries(message[section] ?? {})) {
        if (value === null) state[section].delete(key);
        else state[section].set(key, value);
        changed[section].push(key);
      }
    }
    onState(state, changed, message.events ?? []);
  }

  function lose() {
    onLost(heardAt);
    opened.abort();
    again ??= setTimeout(open, AGAIN_MS);
  }

  function refuse(why) {
    onRefused(why, heardAt);
    again ??= setTimeout(open, REFUSED_MS);
  }

  setInterval(() => {
    if (again === null && performance.now() - Math.max(heardAt ?? 0, openedAt) > SILENCE_MS) lose();
  }, 500);
  open();
}

async function* messages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const fields = Object.fromEntries(part.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
      yield [fields.event, fields.data];
    }
  }
}
