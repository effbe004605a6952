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
    this.rows = [];
    this.find = document.getElementById("proxies-find");
    this.find.addEventListener("input", () => this.state && this.arrange());
  }

  draw(state, changed) {
    this.state = state;
    if (changed.isWhole || changed.proxies.length) this.arrange();
  }

  // Rows belong to places, not to proxies: whoever comes to a place is written over what is there.
  arrange() {
    const wanted = this.find.value.trim().toLowerCase();
    const all = [...this.state.proxies.entries()].filter(([key, each]) => !wanted || `${key} ${each.cluster}`.toLowerCase().includes(wanted));
    all.sort(([one, a], [other, b]) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || (one < other ? -1 : 1));
    const shown = all.slice(0, MOST_ROWS);
    while (this.rows.length > shown.length) this.rows.pop().root.remove();
    while (this.rows.length < shown.length) {
      this.rows.push(build());
      this.body.append(this.rows.at(-1).root);
    }
    shown.forEach(([, value], index) => {
      if (this.rows[index].value !== value) this.drawRow(this.rows[index], value);
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
    while (row.types.childElementCount > value.types.length) row.types.lastElementChild.remove();
    while (row.types.childElementCount < value.types.length) row.types.append(chip());
    value.types.forEach((type, index) => drawChip(row.types.children[index], type));
    const error = value.types.find((each) => each.error);
    row.error.hidden = !error;
    write(row.error, error ? `${SHORT[error.name] ?? error.name}: ${error.error}` : "");
    write(row.nacks, String(value.types.reduce((total, each) => total + each.nacks, 0)));
    this.ageRow(row);
  }

  ageRow(row) {
    const waiting = row.value.types.map((each) => this.clock.age(each.sent_at_s)).filter((each) => each !== null);
    const lags = row.value.types.map((each) => each.lag_s).filter((each) => each !== null);
    if (waiting.length) write(row.lag, `waits ${span(Math.max(...waiting))}`);
    else write(row.lag, lags.length ? `${Math.round(1000 * Math.max(...lags))} ms` : MISSING);
  }

  age() {
    for (const row of this.rows) if (row.value.state === "stale") this.ageRow(row);
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

function chip() {
  return element("span", { class: "chip" }, element("span"), element("span", { "aria-hidden": "true" }), element("span", { class: "unseen" }));
}

function drawChip(node, type) {
  const sign = { error: "✕", stale: "…", not_sent: "–", synced: "✓" }[type.state];
  mark(node, "state", type.state);
  [SHORT[type.name] ?? type.name, ` ${sign}`, ` ${type.state.replace("_", " ")}`].forEach((text, index) => write(node.children[index], text));
}
