// Weights over up to ten minutes, as steps: a weight holds until the next one. Of a model's tiers, or of a tier's endpoints.
import { element, percent, utc } from "./format.js";

const MOST_S = 600;
const LEAST_S = 120;
const MOST = 1200;
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 600;
const HEIGHT = 120;
const STYLES = 8;

function svg(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// As its line is drawn: colors alone do not tell four of them apart for everybody.
function sample(index) {
  const made = svg("svg", { viewBox: "0 0 26 8", class: "chart sample", "aria-hidden": "true" });
  made.append(svg("path", { class: `line s${index % STYLES}`, d: "M0,4H26" }));
  return made;
}

export class Chart {
  // `top` is the weight at the upper edge.
  constructor(label, names, { top = 1000, title = "Weights over time" } = {}) {
    this.label = label;
    this.points = [];
    this.svg = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "chart", role: "img" });
    for (const ratio of [0, 0.5, 1]) {
      const y = 2 + (HEIGHT - 4) * ratio;
      this.svg.append(svg("line", { x1: 0, x2: WIDTH, y1: y, y2: y, class: "grid" }));
    }
    this.axis = [1, 0.5, 0].map((part) => [part, element("span")]);
    this.setTop(top);
    this.from = element("span");
    this.legend = element("span", { class: "legend" });
    this.root = element("figure", {},
      element("figcaption", {}, this.title = element("span", { text: title }), this.legend),
      element("div", { class: "plot" },
        element("span", { class: "axis", "aria-hidden": "true" }, ...this.axis.map(([, label]) => label)),
        this.svg),
      element("div", { class: "times", "aria-hidden": "true" }, this.from, element("span", { text: "now" })));
    this.setNames(names);
  }

  setTop(top) {
    this.top = top;
    for (const [part, label] of this.axis) label.textContent = part === 1 ? `${top / 10} %` : String((top / 10) * part);
  }

  setNames(names) {
    this.names = names;
    this.paths?.forEach((each) => each.remove());
    this.paths = names.map((_, index) => svg("path", { class: `line s${index % STYLES}` }));
    this.svg.append(...[...this.paths].reverse());
    this.legend.replaceChildren(...names.map((name, index) => element("span", { class: "key" }, sample(index), name)));
  }

  // Whether it is news: the same weights again are none.
  add(at, weights) {
    const last = this.points.at(-1);
    if (last && at >= last.at && Object.keys(weights).every((name) => last.weights[name] === weights[name])) return false;
    if (!last || at >= last.at) this.points.push({ at, weights });
    else {
      // The past is told after the present: it is put where it belongs.
      const index = this.points.findIndex((each) => each.at > at);
      this.points.splice(index, 0, { at, weights });
    }
    if (this.points.length > MOST) this.points.splice(0, this.points.length - MOST);
    return true;
  }

  draw(now) {
    // The last point before the window still says what held at its left edge.
    while (this.points.length > 1 && this.points[1].at < now - MOST_S) this.points.shift();
    if (!this.points.length) return;
    const width = Math.min(MOST_S, Math.max(LEAST_S, now - this.points[0].at));
    const start = now - width;
    const x = (at) => (WIDTH * Math.max(0, at - start)) / width;
    const y = (weight) => 2 + (HEIGHT - 4) * (1 - Math.min(1, weight / this.top));
    this.names.forEach((name, index) => {
      let path = "";
      for (const { at, weights } of this.points) {
        const weight = weights[name];
        if (weight === undefined) continue;
        const [px, py] = [x(at).toFixed(1), y(weight).toFixed(1)];
        path += path ? `H${px}V${py}` : `M${px},${py}`;
      }
      this.paths[index].setAttribute("d", path && `${path}H${WIDTH}`);
    });
    this.from.textContent = `${utc(start)} UTC`;
    const latest = this.points.at(-1).weights;
    const said = this.names.map((name) => `${name} ${percent((latest[name] ?? 0) / 1000, 1)}`).join(", ");
    const label = `Weights of ${this.label} over time; now ${said}`;
    if (this.svg.getAttribute("aria-label") !== label) this.svg.setAttribute("aria-label", label);
  }
}

// The endpoints of a tier. Where there are many, only those that stand out: more lines than styles tell nothing.
export class EndpointChart extends Chart {
  constructor(label) {
    super(label, [], { top: 1500 });
    this.root.classList.add("endpoints");
  }

  // Take in the weights by instance as they are now; whether they are news.
  take(now, weights) {
    const isNews = this.add(now, weights);
    const highest = Math.max(...Object.values(weights));
    if (highest > this.top) this.setTop(500 * Math.ceil(highest / 500));
    const names = standOut(weights);
    const isOther = names.join() !== this.names.join();
    if (isOther) {
      this.setNames(names);
      const count = Object.keys(weights).length;
      const some = count > names.length ? `, the ${names.length} of ${count} that stand out` : "";
      this.title.textContent = `Endpoint weights of ${this.label} since the page was opened (100 % = average capacity)${some}`;
    }
    return isNews || isOther;
  }
}

function standOut(weights) {
  const all = Object.entries(weights);
  if (all.length <= STYLES) return all.map(([name]) => name);
  const middle = all.map(([, weight]) => weight).sort((one, other) => one - other)[Math.floor(all.length / 2)];
  const apart = ([, weight]) => Math.abs(weight - middle);
  const chosen = new Set([...all].sort((one, other) => apart(other) - apart(one)).slice(0, STYLES).map(([name]) => name));
  return all.map(([name]) => name).filter((name) => chosen.has(name));
}
