// One instance: state, part of the model's requests, pressure against the watermarks, ceiling, age.
import { element, mark, number, percent, span, write } from "./format.js";

const STATES = { healthy: "●", warming: "◔", recovering: "◑", draining: "◇", down: "✕", quarantined: "⊘" };

export class Cell {
  constructor(id, clock, explain) {
    this.id = id;
    this.clock = clock;
    this.parts = {};
    const part = (name, attributes = {}) => (this.parts[name] = element("span", { class: name, ...attributes }));
    const meter = element("span", { class: "meter", "aria-hidden": "true" }, part("fill"), element("span", { class: "tick high" }), element("span", { class: "tick critical" }));
    this.button = element("button", { type: "button", class: "cell" },
      element("span", { class: "line" }, part("glyph", { "aria-hidden": "true" }), element("span", { class: "name", text: id }), part("share")),
      meter,
      element("span", { class: "line quiet" }, part("state"), part("numbers"), part("age")));
    this.button.addEventListener("click", () => explain(id, this.button));
    this.root = element("li", {}, this.button);
  }

  draw(value, facts) {
    this.value = value;
    mark(this.button, "state", value.state);
    mark(this.button, "freshness", value.freshness);
    mark(this.button, "health", value.health);
    mark(this.button, "level", level(value.pressure, facts));
    write(this.parts.glyph, STATES[value.state] ?? "?");
    write(this.parts.share, value.health === "healthy" ? percent(value.share, 1) : "0 %");
    write(this.parts.state, value.state);
    // The room is for one number: what holds it back, or how busy it is, which the bar tells too.
    const isHeld = value.ceiling > 0 && value.ceiling < 1;
    write(this.parts.numbers, isHeld ? `≤ ${percent(value.ceiling)}` : `p ${number(value.pressure, 2)}`);
    fill(this.parts.fill, value.pressure);
    // Why, without a click; of those that are as they should be it would only be in the way.
    const why = value.state === "healthy" && !isHeld ? "" : value.text;
    if (this.button.title !== why) this.button.title = why;
    this.label();
    this.age(facts);
  }

  // What a screen reader says; ages would make it chatter, so they are not in it.
  label() {
    const { state, share, pressure, ceiling, freshness } = this.value;
    const pressed = pressure === null ? "pressure unknown" : `pressure ${number(pressure, 2)}`;
    const text = `${this.id}: ${state}, ${percent(share, 1)} of the model, ${pressed}, ceiling ${percent(ceiling)}, telemetry ${freshness}. Explain`;
    if (this.button.getAttribute("aria-label") !== text) this.button.setAttribute("aria-label", text);
  }

  age(facts) {
    const age = this.clock.age(this.value.at_s);
    const isOld = age === null || age > facts.stale_s;
    write(this.parts.age, age === null ? "never heard" : isOld ? `⚠ ${span(age)} old` : span(age));
    mark(this.parts.age, "old", String(isOld));
    mark(this.button, "old", String(isOld));
    mark(this.button, "calm", String(!isOld && this.value.state === "healthy" && this.value.ceiling === 1 && this.value.freshness === "fresh"));
  }
}

// Scaling needs no layout, which a width would.
export function fill(node, pressure) {
  const scale = `scaleX(${Math.min(1, pressure ?? 0)})`;
  if (node.style.transform !== scale) node.style.transform = scale;
}

export function level(pressure, facts) {
  if (pressure === null) return "unknown";
  return pressure >= facts.critical ? "critical" : pressure >= facts.high ? "degraded" : "healthy";
}
