// The table of proxies, those that need attention first; a few rows even of thousands.
import { MISSING, element, mark, span, write } from "./format.js";

const MOST_ROWS = 60;
const ORDER = ["error", "stale", "not_sent", "synced"];
const STATES = { error: "✕ refused", stale: "… on its way", not_sent: "– nothing sent", synced: "● in sync" };
const SHORT = { Cluster: "CDS", ClusterLoadAssignment: "EDS", Listener: "LDS", RouteConfiguration: "RDS", ScopedRouteConfiguration: "SRDS", Secret: "SDS" };

export class Proxies {
  constructor(clock) {
    this.clock = clock;
    this.body = document.querySelector("#proxies tbody");
    this.rows = new Map();
    this.find = document.getElementById("proxies-find");
    this.find.addEventListener("input", () => this.state && this.arrange());
  }

  draw(state, changed) {
    this.state = state;
    if (!changed.isWhole && !changed.proxies.length) return;
    for (const key of changed.isWhole ? [...this.rows.keys()] : changed.proxies) {
      const value = state.proxies.get(key);
      if (this.rows.has(key) && value !== undefined) this.drawRow(this.rows.get(key), value);
    }
    this.arrange();
  }

  // Choose and order the rows; those that stay where they are are not touched.
  arrange() {
    const wanted = this.find.value.trim().toLowerCase();
    const all = [...this.state.proxies.entries()].filter(([key, each]) => !wanted || `${key} ${each.cluster}`.toLowerCase().includes(wanted));
    all.sort(([one, a], [other, b]) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || (one < other ? -1 : 1));
    const shown = all.slice(0, MOST_ROWS);
    const keys = new Set(shown.map(([key]) => key));
    for (const [key, row] of this.rows) {
      if (keys.has(key)) continue;
      row.root.remove();
      this.rows.delete(key);
    }
    shown.forEach(([key, value], index) => {
      if (!this.rows.has(key)) this.rows.set(key, this.drawRow(build(), value));
      const { root } = this.rows.get(key);
      if (this.body.children[index] !== root) this.body.insertBefore(root, this.body.children[index] ?? null);
    });
    this.sum(all.length);
  }

  sum(found) {
    const count = (state) => [...this.state.proxies.values()].filter((each) => each.state === state).length;
    const parts = ORDER.map((state) => [count(state), STATES[state]]).filter(([number]) => number).map(([number, text]) => `${number} ${text.slice(2)}`);
    write(document.getElementById("proxies-sum"), parts.join(" · ") || "none connected");
    const more = document.getElementById("proxies-more");
    more.hidden = found <= MOST_ROWS;
    write(more, `${found - MOST_ROWS} more, in better order than these; find one by name above.`);
  }

  drawRow(row, value) {
    row.value = value;
    mark(row.root, "state", value.state);
    write(row.name, value.id);
    write(row.cluster, [value.cluster, value.protocol].filter(Boolean).join(" · "));
    write(row.state, STATES[value.state]);
    row.types.replaceChildren(...value.types.map(chip));
    const error = value.types.find((each) => each.error);
    row.error.hidden = !error;
    write(row.error, error ? `${SHORT[error.name] ?? error.name}: ${error.error}` : "");
    write(row.nacks, String(value.types.reduce((total, each) => total + each.nacks, 0)));
    this.ageRow(row);
    return row;
  }

  ageRow(row) {
    const waiting = row.value.types.map((each) => this.clock.age(each.sent_at_s)).filter((each) => each !== null);
    const lags = row.value.types.map((each) => each.lag_s).filter((each) => each !== null);
    if (waiting.length) write(row.lag, `waits ${span(Math.max(...waiting))}`);
    else write(row.lag, lags.length ? `${Math.round(1000 * Math.max(...lags))} ms` : MISSING);
  }

  age() {
    for (const row of this.rows.values()) if (row.value.state === "stale") this.ageRow(row);
  }
}

function build() {
  const row = { name: element("span", { class: "name" }), cluster: element("span", { class: "quiet" }), error: element("span", { class: "error" }) };
  row.state = element("td", { class: "state" });
  row.types = element("td", { class: "types" });
  row.lag = element("td", { class: "num" });
  row.nacks = element("td", { class: "num" });
  row.root = element("tr", {}, element("th", { scope: "row" }, row.name, " ", row.cluster, row.error), row.state, row.types, row.lag, row.nacks);
  return row;
}

function chip(type) {
  const sign = { error: "✕", stale: "…", not_sent: "–", synced: "✓" }[type.state];
  return element("span", { class: "chip", "data-state": type.state }, SHORT[type.name] ?? type.name, " ", element("span", { "aria-hidden": "true", text: sign }), element("span", { class: "unseen", text: ` ${type.state}` }));
}
