// Numbers, ages and elements. Missing is an en dash, never a zero.
export const MISSING = "–";

export function percent(ratio, digits = 0) {
  return ratio === null || ratio === undefined ? MISSING : `${(100 * ratio).toFixed(digits)} %`;
}

export function number(value, digits = 1) {
  return value === null || value === undefined ? MISSING : value.toFixed(digits);
}

export function span(seconds) {
  if (seconds === null) return MISSING;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3600)} h`;
}

export function utc(unixSeconds) {
  return new Date(1000 * unixSeconds).toISOString().slice(11, 19);
}

export const words = (name) => name.replaceAll("_", " ");

// The control plane's clock, carried on between two messages by the browser's.
export class Clock {
  set(facts) {
    this.facts = facts;
    this.heardAt = performance.now();
    this.heardWall = Date.now();
  }

  // Seconds since the last message. `performance` may stand still while the machine sleeps, the wall clock may be set:
  // rather too old than too young.
  elapsed() {
    return Math.max(performance.now() - this.heardAt, Date.now() - this.heardWall) / 1000;
  }

  now() {
    return this.facts.unix_s + this.elapsed();
  }

  // Age in seconds of what the control plane's clock calls `atS`.
  age(atS) {
    if (atS === null || atS === undefined) return null;
    return Math.max(0, this.facts.now_s - atS + this.elapsed());
  }

  unixAt(performanceMs) {
    return this.facts.unix_s + (performanceMs - this.heardAt) / 1000;
  }
}

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") made.className = value;
    else if (name === "text") made.textContent = value;
    else if (value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// Writing the same text again would still cost a layout.
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function mark(node, name, value) {
  if (node.dataset[name] !== value) node.dataset[name] = value;
}
