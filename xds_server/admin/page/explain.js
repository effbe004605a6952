// The explain panel of what was clicked, and draining from it.
import { element, number, percent, words } from "./format.js";
import { confirm } from "./confirm.js";

const AGAIN_MS = 1000;

export class Explain {
  constructor(access) {
    this.access = access;
    this.panel = document.getElementById("explain");
    this.subject = null;
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.subject !== null && !document.querySelector("dialog[open]")) this.close();
    });
  }

  async open(subject, from) {
    this.subject = subject;
    this.from = from;
    this.note = "";
    await this.load();
    this.panel.querySelector("h2")?.focus();
    this.panel.scrollIntoView({ block: "nearest" });
  }

  close() {
    this.subject = null;
    this.panel.hidden = true;
    // The node may have been drawn anew since.
    if (this.from?.isConnected) this.from.focus();
    else document.getElementById("fleet").focus();
  }

  // Ask again while it is open, when something that it tells has moved.
  refresh(changed, state) {
    if (this.subject === null || this.waiting) return;
    const touched = changed.instances.includes(this.subject) || changed.models.includes(this.subject.split("/")[0]);
    if (!touched && state.instances.has(this.subject)) return;
    this.waiting = setTimeout(() => {
      this.waiting = null;
      if (this.subject !== null) this.load();
    }, AGAIN_MS);
  }

  async load() {
    const subject = this.subject;
    let answer;
    try {
      answer = await (await this.access.fetch(`debug/explain?subject=${encodeURIComponent(subject)}`)).json();
    } catch {
      answer = { error: "The control plane does not answer." };
    }
    if (subject !== this.subject) return;
    this.draw(answer);
  }

  draw(answer) {
    const text = JSON.stringify([answer, this.note]);
    if (text === this.drawn && !this.panel.hidden) return;
    this.drawn = text;
    const focused = this.panel.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const close = element("button", { type: "button", class: "close", "aria-label": "Close the explanation", "data-key": "close", text: "✕" });
    close.addEventListener("click", () => this.close());
    const title = element("h2", { id: "explain-title", tabindex: "-1", "data-key": "title", text: this.subject });
    this.panel.replaceChildren(
      element("div", { class: "head" }, title, element("span", { class: "quiet", text: answer.kind ?? "" }), close),
      ...(answer.error ? [element("p", { class: "error", text: answer.error })] : body(answer)),
    );
    if (this.note) this.panel.append(element("p", { class: "error", role: "status", text: this.note }));
    if (["instance", "tier"].includes(answer.kind)) this.panel.append(this.orders(answer));
    this.panel.hidden = false;
    if (focused) this.panel.querySelector(`[data-key="${focused}"]`)?.focus();
  }

  orders(answer) {
    if (!this.access.is.may_order) return element("p", { class: "quiet", text: `No orders from here: ${this.access.is.why}.` });
    const [order, subject, text] = orderOf(answer);
    const button = element("button", { type: "button", "data-key": "order", text });
    const warning = order === "drain" ? answer.if_drained : "";
    const onDone = (note) => {
      this.note = note;
      this.load();
    };
    button.addEventListener("click", () => confirm(order, subject, this.access, { warning, onDone }));
    return element("div", { class: "buttons" }, button);
  }
}

// What can be ordered of what is explained: the order, its subject and the text of the button.
function orderOf({ kind, subject, rule, inputs }) {
  if (kind === "instance") return rule === "operator_drain" ? ["undrain", subject, "Take the drain back…"] : ["drain", subject, "Drain…"];
  const model = subject.split("/")[0];
  if (rule === "forced") return ["unforce", model, `End the force of ${inputs?.tier ?? model}…`];
  return ["force", subject, "Force this tier…"];
}

function body(answer) {
  const nodes = [
    element("p", { class: "rule" }, element("code", { text: answer.rule })),
    element("p", { text: answer.sentence }),
  ];
  if (answer.note) nodes.push(element("p", { text: answer.note }));
  const inputs = Object.entries(answer.inputs ?? {}).filter(([, value]) => !(typeof value === "string" && answer.sentence.includes(value))); // What it says already.
  const names = { demand: "offered_per_s", capacity: "capacity_per_s" };
  const isTold = (key) => answer[key] === undefined || key in (answer.inputs ?? {}) || names[key] in (answer.inputs ?? {});
  const rows = [
    ...["state", "telemetry", "health", "level"].filter((key) => answer[key] !== undefined).map((key) => [key, words(answer[key])]),
    ...inputs.map(([key, value]) => [words(key), typeof value === "number" ? plain(value) : value]),
    ...["pressure", "demand", "capacity", "spill", "ceiling"].filter((key) => !isTold(key)).map((key) => [key, shown(key, answer[key])]),
  ];
  const list = element("dl", { class: "inputs" });
  for (const [key, value] of rows) list.append(element("div", { class: String(value).length > 16 ? "long" : "" }, element("dt", { text: key }), element("dd", { text: value })));
  if (rows.length) nodes.push(list);
  if (answer.calculation) nodes.push(element("h3", { text: "Calculation" }), element("p", { class: "calculation", text: answer.calculation }));
  if (answer.changes_when) nodes.push(element("h3", { text: "What would change it" }), element("p", { text: answer.changes_when }));
  return nodes;
}

const plain = (value) => (Number.isInteger(value) ? String(value) : number(value, 3));

function shown(key, value) {
  if (value === null) return "unknown";
  return key === "spill" || key === "ceiling" ? percent(value, 1) : number(value, 2);
}
