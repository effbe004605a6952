// Server-sent events: the whole state at connect, then what changed; again after every loss.
const SILENCE_MS = 3500; // The control plane says something every second.
const AGAIN_MS = 1000;
const SECTIONS = ["models", "instances", "proxies"];

export function connect({ onState, onLost }) {
  let state = null;
  let heardAt = null;
  let source = null;
  let again = null;

  function open() {
    again = null;
    source = new EventSource("api/stream");
    source.addEventListener("state", (event) => {
      state = { facts: {}, models: new Map(), instances: new Map(), proxies: new Map() };
      take(JSON.parse(event.data), true);
    });
    source.addEventListener("change", (event) => state && take(JSON.parse(event.data), false));
    source.onerror = lose;
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
    source.close();
    again ??= setTimeout(open, AGAIN_MS);
  }

  setInterval(() => {
    if (again === null && heardAt !== null && performance.now() - heardAt > SILENCE_MS) lose();
  }, 500);
  open();
}
