// Starts the page: the stream fills the state, every part draws what changed in it.
import { Clock, utc } from "./format.js";
import { Access } from "./access.js";
import { connect } from "./stream.js";
import { Fleet } from "./fleet.js";
import { Proxies } from "./proxies.js";
import { Events } from "./events.js";
import { Explain } from "./explain.js";
import { sum } from "./verdict.js";
import { followTheme } from "./theme.js";

const clock = new Clock();
const access = new Access();
const explain = new Explain(access);
const fleet = new Fleet(document.getElementById("fleet"), clock, (subject, from) => explain.open(subject, from));
const proxies = new Proxies(clock);
const events = new Events((row) => fleet.backfill(row), access);
const lost = document.getElementById("lost");
let state = null;
let isFirst = true;

followTheme(document.getElementById("theme"));

// From the verdict to what it is about.
function look(subject, from) {
  fleet.reveal(subject);
  explain.open(subject, from);
}

function draw(changed) {
  fleet.draw(state, changed);
  proxies.draw(state, changed);
  sum(state, look);
  explain.refresh(changed, state);
}

// Numbers stay, but nobody may take them for the present.
function say(text) {
  if (lost.textContent !== text) lost.textContent = text;
  lost.hidden = false;
  document.body.classList.add("is-lost");
}

const since = (heardAt) => (heardAt === null ? "" : ` What you see is from ${utc(clock.unixAt(heardAt))} UTC.`);

connect({
  access,
  onState(next, changed, news) {
    state = next;
    clock.set(state.facts);
    if (!lost.hidden || isFirst) events.load(); // What happened meanwhile.
    isFirst = false;
    lost.hidden = true;
    document.body.classList.remove("is-lost");
    events.add(news);
    draw(changed);
  },
  onLost(heardAt) {
    say(`No connection to the control plane; proxies keep what they have.${since(heardAt)} Trying again.`);
  },
  onRefused(why, heardAt) {
    say(`Nothing is shown: ${why}.${since(heardAt)}`);
    if (state === null) document.getElementById("verdict").lastElementChild.textContent = "Log in to look";
    access.draw();
    if (access.is.has_tokens && isFirst) access.ask(why);
    isFirst = false;
  },
});

setInterval(() => {
  if (state === null) return;
  document.getElementById("clock").textContent = utc(clock.now());
  fleet.age();
  proxies.age();
}, 1000);
