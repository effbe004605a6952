// Starts the page: the stream fills the state, every part draws what changed in it.
import { Clock, utc } from "./format.js";
import { connect } from "./stream.js";
import { Fleet } from "./fleet.js";
import { Proxies } from "./proxies.js";
import { Events } from "./events.js";
import { Explain } from "./explain.js";
import { sum } from "./verdict.js";
import { followTheme } from "./theme.js";

const clock = new Clock();
const explain = new Explain();
const fleet = new Fleet(document.getElementById("fleet"), clock, (subject, from) => explain.open(subject, from));
const proxies = new Proxies(clock);
const events = new Events((row) => fleet.backfill(row));
const lost = document.getElementById("lost");
let state = null;

followTheme(document.getElementById("theme"));

function draw(changed) {
  fleet.draw(state, changed);
  proxies.draw(state, changed);
  sum(state);
  explain.refresh(changed, state);
}

connect({
  onState(next, changed, news) {
    state = next;
    clock.set(state.facts);
    lost.hidden = true;
    document.body.classList.remove("is-lost");
    events.add(news);
    draw(changed);
  },
  onLost(heardAt) {
    // Numbers stay, but nobody may take them for the present.
    const since = heardAt === null ? "" : ` What you see is from ${utc(clock.unixAt(heardAt))} UTC.`;
    const text = `No connection to the control plane; proxies keep what they have.${since} Trying again.`;
    if (lost.textContent !== text) lost.textContent = text;
    lost.hidden = false;
    document.body.classList.add("is-lost");
  },
});
events.load();

setInterval(() => {
  if (state === null) return;
  document.getElementById("clock").textContent = utc(clock.unixAt(performance.now()));
  fleet.age();
  proxies.age();
}, 1000);
