// The one sentence at the top: the worst that is true now.
import { percent, write, mark } from "./format.js";

const OUT = ["down", "quarantined"];
const RETURNING = ["recovering", "warming"];

export function sum(state) {
  const instances = [...state.instances.entries()];
  const proxies = [...state.proxies.values()];
  const serving = instances.filter(([, each]) => each.health === "healthy").length;
  const synced = proxies.filter((each) => each.state === "synced").length;
  write(document.getElementById("sum-instances"), `${serving} of ${instances.length} serve`);
  write(document.getElementById("sum-proxies"), `${synced} of ${proxies.length}`);

  const troubles = [];
  const say = (level, text) => troubles.push([level, text]);
  const named = (states) => instances.filter(([, each]) => states.includes(each.state)).map(([id]) => id);
  if (state.facts.not_ready) say(2, `Proxies are not answered yet: ${state.facts.not_ready}`);
  list(named(OUT), "down", (text) => say(2, text));
  for (const [name, model] of state.models) {
    for (const tier of model.tiers) {
      const passes = tier.spill > 0 ? `, passes on ${percent(tier.spill)}` : "";
      if (tier.level !== "healthy") say(tier.level === "critical" ? 2 : 1, `${name}/${tier.name} ${tier.level}${passes}`);
      else if (tier.spill > 0) say(1, `${name}/${tier.name} passes on ${percent(tier.spill)}`);
    }
  }
  list(proxies.filter((each) => each.state === "error").map((each) => each.id), "refuses its configuration", (text) => say(2, text));
  list(named(RETURNING), "returning", (text) => say(1, text));
  list(named(["draining"]), "draining", (text) => say(1, text));
  list(instances.filter(([, each]) => each.freshness !== "fresh").map(([id]) => id), "not heard of", (text) => say(1, text));
  if (!state.facts.config_valid) say(1, "the changed configuration is refused, the last good one serves");
  if (state.facts.history_trouble) say(1, `history: ${state.facts.history_trouble}`);

  troubles.sort((one, other) => other[0] - one[0]);
  const level = troubles.length ? troubles[0][0] : 0;
  const verdict = document.getElementById("verdict");
  mark(verdict, "level", String(level));
  write(verdict.firstElementChild, ["●", "▲", "✕"][level]);
  write(verdict.lastElementChild, troubles.length ? troubles.map(([, text]) => text).join(" · ") : "All well");
  const title = `${["●", "▲", "✕"][level]} gpu-xds`;
  if (document.title !== title) document.title = title;
}

function list(names, what, say) {
  if (names.length > 3) say(`${names.length} ${what}`);
  else if (names.length) say(`${names.join(", ")} ${what}`);
}
