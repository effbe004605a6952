// The timeline, the newest first: what the stream brings, and at the start what the event store has.
import { element, utc, words } from "./format.js";

const MOST = 200;
const BAD = ["instance_down", "instance_quarantined", "xds_nack_received", "config_refused", "server_was_killed"];

export class Events {
  constructor(onWeights, access) {
    this.access = access;
    this.onWeights = onWeights;
    this.rows = [];
    this.known = new Set();
    this.list = document.getElementById("events");
    this.log = document.getElementById("log");
    this.kind = document.getElementById("events-kind");
    this.kind.addEventListener("change", () => this.draw());
  }

  // What happened before the control plane's own memory; the page does without where there is none.
  async load() {
    try {
      const [all, weights] = await Promise.all(["limit=200", "kind=weights&since=10m&limit=1000"].map((query) => this.access.fetch(`api/events?${query}`)));
      if (all.ok) this.add((await all.json()).events);
      if (weights.ok) this.remember((await weights.json()).events);
    } catch {
      // The stream says that the connection is lost.
    }
  }

  remember(rows) {
    for (const row of rows) this.onWeights(row);
  }

  add(news) {
    const fresh = news.filter((row) => {
      const key = `${Math.round(1000 * row.at_unix_s)} ${row.name} ${row.model} ${row.tier} ${row.instance} ${row.proxy}`;
      if (this.known.has(key)) return false;
      this.known.add(key);
      return true;
    });
    if (!fresh.length) return;
    const isNewer = !this.rows.length || fresh[0].at_unix_s >= this.rows[0].at_unix_s;
    this.rows = [...fresh, ...this.rows].sort((one, other) => other.at_unix_s - one.at_unix_s).slice(0, 5 * MOST);
    if (!isNewer) return this.draw();
    const shown = fresh.filter((row) => this.fits(row));
    this.list.prepend(...shown.map(item).reverse());
    while (this.list.childElementCount > MOST) this.list.lastElementChild.remove();
  }

  fits(row) {
    return this.kind.value ? this.kind.value.split(",").includes(row.kind) : row.kind !== "weights";
  }

  draw() {
    this.log.setAttribute("aria-live", "off"); // Nothing of this is news.
    this.list.replaceChildren(...this.rows.filter((row) => this.fits(row)).slice(0, MOST).map(item));
    setTimeout(() => this.log.setAttribute("aria-live", "polite"), 100);
  }
}

function item(row) {
  const place = row.instance || row.proxy || [row.model, row.tier].filter(Boolean).join("/");
  const step = row.before && row.after && row.kind !== "weights" ? `${words(row.before)} → ${words(row.after)}` : row.kind === "weights" ? row.after : "";
  const who = [row.who, row.why].filter(Boolean).join(": ");
  const sign = BAD.includes(row.name) ? "✕" : row.kind === "operator" ? "◆" : "·";
  return element("li", { "data-bad": String(BAD.includes(row.name)) },
    element("time", { datetime: new Date(1000 * row.at_unix_s).toISOString(), text: utc(row.at_unix_s) }),
    element("span", { class: "sign", "aria-hidden": "true", text: sign }),
    element("span", { class: "what" },
      element("b", { text: words(row.name) }), place ? ` ${place}` : "", step ? ` ${step}` : "",
      element("span", { class: "quiet", text: [row.text, who].filter(Boolean).join(" ") })));
}
