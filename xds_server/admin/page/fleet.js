// The fleet map: a section per model, with its tiers, their instances as cells, weights over time, classes.
import { element, mark, number, percent, write } from "./format.js";
import { Chart, EndpointChart } from "./chart.js";
import { Cell, fill, level } from "./cell.js";

const MANY = 24; // Of more instances those that are as they should be take less room.
const LEVELS = { healthy: "●", degraded: "▲", critical: "✕" };

export class Fleet {
  constructor(root, clock, explain) {
    this.root = root;
    this.clock = clock;
    this.explain = explain;
    this.models = new Map();
    this.cells = new Map();
    this.past = [];
  }

  draw(state, changed) {
    this.state = state;
    if (changed.isWhole) {
      this.root.style.setProperty("--high", `${100 * state.facts.high}%`);
      this.root.style.setProperty("--critical", `${100 * state.facts.critical}%`);
      for (const name of [...this.models.keys()]) if (!state.models.has(name)) this.remove(name);
      for (const id of [...this.cells.keys()]) if (!state.instances.has(id)) this.cells.delete(id);
    }
    for (const id of changed.instances) {
      const value = state.instances.get(id);
      if (value === undefined) this.cells.delete(id);
      else this.cell(id).draw(value, state.facts);
    }
    for (const name of changed.models) {
      if (state.models.has(name)) this.drawModel(name, state.models.get(name));
      else this.remove(name);
    }
    const touched = new Set(changed.instances.map((id) => state.instances.get(id)?.model));
    for (const name of touched) {
      const part = this.models.get(name);
      if (part && !changed.models.includes(name)) this.trace(part, state.models.get(name));
    }
    if (!state.models.size) write(this.root, "No models yet.");
  }

  cell(id) {
    if (!this.cells.has(id)) this.cells.set(id, new Cell(id, this.clock, this.explain));
    return this.cells.get(id);
  }

  remove(name) {
    this.models.get(name)?.section.remove();
    this.models.delete(name);
  }

  drawModel(name, model) {
    const shape = JSON.stringify([model.tiers.map((each) => [each.name, each.instances]), model.classes.map((each) => each.name)]);
    let part = this.models.get(name);
    if (part?.shape !== shape) {
      const made = this.build(name, model, part);
      made.shape = shape;
      if (part) part.section.replaceWith(made.section);
      else {
        if (!this.models.size) this.root.replaceChildren();
        this.root.append(made.section);
      }
      this.models.set(name, made);
      part = made;
    }
    let reaching = 1; // Of the model's requests, what the tiers before it pass on.
    model.tiers.forEach((tier, index) => {
      this.drawTier(part.tiers[index], tier, tier.rule === "forced" ? tier.weight / 1000 : reaching);
      reaching *= tier.spill ?? 0;
    });
    model.classes.forEach((each, index) => drawClass(part.classes[index], each));
    const now = this.clock.now();
    const isNews = part.chart.add(now, Object.fromEntries(model.tiers.map((each) => [each.name, each.weight])));
    if (isNews && part.shown === part.chart) part.chart.draw(now);
    this.trace(part, model);
  }

  // Take the weights of endpoints into their charts.
  trace(part, model) {
    const now = this.clock.now();
    for (const tier of model.tiers) {
      const chart = part.endpoints.get(tier.name);
      if (!chart) continue;
      const known = tier.instances.filter((id) => this.state.instances.has(id));
      const isNews = chart.take(now, Object.fromEntries(known.map((id) => [id, this.state.instances.get(id).weight])));
      if (isNews && part.shown === chart) chart.draw(now);
    }
  }

  build(name, model, old) {
    const chart = old?.chart ?? new Chart(name, model.tiers.map((each) => each.name));
    chart.setNames(model.tiers.map((each) => each.name));
    for (const row of this.past) if (row.model === name) remember(chart, row);
    this.past = this.past.filter((row) => row.model !== name);
    const title = element("button", { type: "button", class: "link", text: name, "aria-label": `Explain model ${name}` });
    title.addEventListener("click", () => this.explain(name, title));
    const tiers = model.tiers.map((tier, index) => this.buildTier(name, tier, index));
    const classes = model.classes.map((each) => buildClass(name, each, this.explain));
    const section = element("section", { class: "card model", "aria-label": `Model ${name}` },
      element("div", { class: "head" }, element("h2", {}, title)),
      element("div", { class: "tiers" }, ...tiers.map((each) => each.root)),
    );
    const staffed = model.tiers.filter((each) => each.instances.length).map((each) => each.name);
    const endpoints = new Map(staffed.map((tier) => [tier, old?.endpoints.get(tier) ?? new EndpointChart(`${name}/${tier}`)]));
    const part = { section, chart, endpoints, tiers, classes };
    section.append(this.choice(part, staffed, old?.choice.value), chart.root, ...[...endpoints.values()].map((each) => each.root));
    if (classes.length) section.append(classTable(name, model, classes));
    return part;
  }

  // Which of the charts is shown.
  choice(part, tiers, chosen) {
    part.choice = element("select", {}, element("option", { value: "", text: "Tiers" }), ...tiers.map((tier) => element("option", { value: tier, text: `Endpoints of ${tier}` })));
    part.choice.value = tiers.includes(chosen) ? chosen : "";
    const show = () => {
      part.shown = part.endpoints.get(part.choice.value) ?? part.chart;
      for (const each of [part.chart, ...part.endpoints.values()]) each.root.hidden = each !== part.shown;
      part.shown.draw(this.clock.now());
    };
    part.choice.addEventListener("change", show);
    show();
    return element("label", { class: "chosen" }, "Chart of ", part.choice);
  }

  buildTier(modelName, tier, index) {
    const subject = `${modelName}/${tier.name}`;
    const name = element("button", { type: "button", class: "link", text: tier.name, "aria-label": `Explain tier ${subject}` });
    name.addEventListener("click", () => this.explain(subject, name));
    const fields = Object.fromEntries(["glyph", "level", "share", "pressure", "marks", "spill", "flow", "why"].map((each) => [each, element("span", { class: each })]));
    fields.glyph.setAttribute("aria-hidden", "true");
    const bar = element("span", { class: "fill" });
    const meter = element("span", { class: "meter wide", "aria-hidden": "true" }, bar, element("span", { class: "tick high" }), element("span", { class: "tick critical" }));
    const facts = element("dl", { class: "tierfacts" });
    const add = (label, ...nodes) => facts.append(element("div", {}, element("dt", { text: label }), element("dd", {}, ...nodes)));
    add("Pressure", fields.pressure, meter, fields.marks);
    add("Passes on", fields.spill);
    add("Offered / capacity", fields.flow);
    const cells = element("ul", { class: tier.instances.length > MANY ? "cells many" : "cells", "aria-label": `Instances of ${subject}` }, ...tier.instances.map((id) => this.cell(id).root));
    const root = element("section", { class: "tier", "aria-label": `Tier ${subject}` },
      element("div", { class: "tierhead" },
        element("span", { class: `swatch s${index % 4}`, "aria-hidden": "true" }),
        element("h3", {}, name), fields.share, element("span", { class: "levels" }, fields.glyph, " ", fields.level)),
      fields.why);
    if (tier.instances.length) root.append(facts, cells);
    return { root, fields, fill: bar, meter };
  }

  drawTier(part, tier, reaching) {
    const { fields } = part;
    const { high, critical } = this.state.facts;
    mark(part.root, "level", tier.level);
    write(fields.share, percent(tier.weight / 1000, 1));
    if (tier.instances.length) {
      write(fields.glyph, LEVELS[tier.level]);
      write(fields.level, tier.level);
    } else write(fields.level, "answers by itself");
    write(fields.why, tier.text);
    write(fields.pressure, tier.pressure === null ? "unknown" : number(tier.pressure, 2));
    write(fields.marks, `high ${number(high, 2)}, critical ${number(critical, 2)}`);
    write(fields.spill, percent(tier.spill, 1));
    write(fields.flow, `${number(tier.demand === null ? null : tier.demand * reaching)} / ${number(tier.capacity)} req/s`);
    mark(part.meter, "level", level(tier.pressure, this.state.facts));
    fill(part.fill, tier.pressure);
  }

  // Bring an instance or a tier into view.
  reveal(subject) {
    const [model, tier] = subject.split("/");
    const index = this.state.models.get(model)?.tiers.findIndex((each) => each.name === tier) ?? -1;
    const node = this.cells.get(subject)?.root ?? this.models.get(model)?.tiers[index]?.root;
    node?.scrollIntoView({ block: "nearest" });
  }

  backfill(row) {
    if (!row.data?.tiers) return;
    const model = this.models.get(row.model);
    if (model) remember(model.chart, row);
    else this.past.push(row); // The history may answer before the stream.
  }

  age() {
    for (const cell of this.cells.values()) cell.age(this.state.facts);
    const now = this.clock.now();
    for (const { shown } of this.models.values()) shown.draw(now);
  }
}

function remember(chart, row) {
  chart.add(row.at_unix_s, Object.fromEntries(Object.entries(row.data.tiers).map(([name, each]) => [name, each.weight])));
}

function classTable(name, model, classes) {
  const heads = ["Class", "State", "Of requests", ...model.tiers.map((each) => `To ${each.name}`)];
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Classes of ${name}` },
    element("table", { class: "classes" },
      element("thead", {}, element("tr", {}, ...heads.map((text, index) => element("th", { scope: "col", text, class: index > 1 ? "num" : "" })))),
      element("tbody", {}, ...classes.map((each) => each.row))));
}

function buildClass(model, each, explain) {
  const name = element("button", { type: "button", class: "link", text: each.name, "aria-label": `Explain class ${model}/${each.name}` });
  name.addEventListener("click", () => explain(`${model}/${each.name}`, name));
  const cells = [element("td", {}), element("td", { class: "num" }), ...each.weights.map(() => element("td", { class: "num" }))];
  return { row: element("tr", {}, element("th", { scope: "row" }, name), ...cells), cells };
}

function drawClass(part, each) {
  const texts = [each.is_rejected ? "✕ rejected" : each.is_shed ? "▲ static answer" : "● served", percent(each.demand_ratio), ...each.weights.map((weight) => percent(weight / 1000, 1))];
  part.cells.forEach((cell, index) => write(cell, texts[index]));
}

