// The one sentence at the top: the worst that is true now. What it names leads to its explanation.
import { element, percent, write, mark } from "./format.js";

const OUT = ["down", "quarantined"];
const RETURNING = ["recovering", "warming"];
const SIGNS = ["●", "▲", "✕"];
const NAMED = 3;
let drawn = "";

export function sum(state, look) {
  const instances = [...state.instances.entries()];
  const proxies = [...state.proxies.values()];
  const serving = instances.filter(([, each]) => each.health === "healthy").length;
  const synced = proxies.filter((each) => each.state === "synced").length;
  write(document.getElementById("sum-instances"), `${serving} of ${instances.length} serve`);
  write(document.getElementById("sum-proxies"), `${synced} of ${proxies.length}`);

  // How bad, what can be explained, and what is to be said.
  const troubles = [];
  const say = (level, text, subjects = []) => troubles.push({ level, subjects, text });
  const list = (level, names, what) => {
    const more = names.length > NAMED ? ` and ${names.length - NAMED} more` : "";
    if (names.length) say(level, `${more} ${what}`, names.slice(0, NAMED));
  };
  const named = (states) => instances.filter(([, each]) => states.includes(each.state)).map(([id]) => id);
  if (state.facts.not_ready) say(2, `Proxies are not answered yet: ${state.facts.not_ready}`);
  list(2, named(OUT), "down");
  for (const [name, model] of state.models) {
    for (const tier of model.tiers) {
      const subject = [`${name}/${tier.name}`];
      const passes = tier.spill > 0 ? `passes on ${percent(tier.spill)}` : "";
      if (tier.rule === "forced") {
        if (tier.weight === 1000) say(1, " is forced", subject);
      } else if (tier.level !== "healthy") say(tier.level === "critical" ? 2 : 1, ` ${tier.level}${passes && `, ${passes}`}`, subject);
      else if (passes) say(1, ` ${passes}`, subject);
    }
  }
  const refusing = proxies.filter((each) => each.state === "error").map((each) => each.id);
  if (refusing.length > NAMED) say(2, `${refusing.length} proxies refuse their configuration`);
  else if (refusing.length) say(2, `${refusing.join(", ")} ${refusing.length > 1 ? "refuse their" : "refuses its"} configuration`);
  list(1, named(RETURNING), "returning");
  list(1, named(["draining"]), "draining");
  list(1, instances.filter(([, each]) => each.freshness !== "fresh").map(([id]) => id), "not heard of");
  if (!state.facts.config_valid) say(1, "the changed configuration is refused, the last good one serves");
  if (state.facts.history_trouble) say(1, `history: ${state.facts.history_trouble}`);

  troubles.sort((one, other) => other.level - one.level);
  draw(troubles, look);
}

function draw(troubles, look) {
  const text = JSON.stringify(troubles);
  if (text === drawn) return;
  drawn = text;
  const level = troubles.length ? troubles[0].level : 0;
  const verdict = document.getElementById("verdict");
  const said = verdict.lastElementChild;
  mark(verdict, "level", String(level));
  write(verdict.firstElementChild, SIGNS[level]);
  // A number that moves must not take the focus away.
  const focused = said.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const parts = troubles.map((trouble, index) => element("span", { class: "trouble" }, ...(index ? [" · "] : []), ...trouble.subjects.flatMap((subject, at) => [at ? ", " : "", link(subject, look, `${index} ${subject}`)]), trouble.text.replaceAll(" %", "\u00a0%")));
  said.replaceChildren(...(parts.length ? parts : ["All well"]));
  if (focused) [...said.querySelectorAll("button")].find((each) => each.dataset.key === focused)?.focus();
  const title = `${SIGNS[level]} gpu-xds`;
  if (document.title !== title) document.title = title;
}

function link(subject, look, key) {
  const made = element("button", { type: "button", class: "named", "data-key": key, title: `Explain ${subject}`, text: subject });
  made.addEventListener("click", () => look(subject, made));
  return made;
}
