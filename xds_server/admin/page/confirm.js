// The question before an order is given. What is allowed decides the control plane; what it says is shown.
const dialog = document.getElementById("confirm");
const at = (name) => document.getElementById(`confirm-${name}`);
const KEY = "gpu-xds-who";
let asked = null;

// Orders by name: their title, what follows, the button, the path, and whether they end by themselves.
const ORDERS = {
  drain: (name) => ({
    title: `Drain ${name}?`,
    text: "It gets no new requests; running ones finish. The rest of its tier, then the next tier, take its part.",
    yes: `Drain ${name}`,
    path: `drain/${encodeURIComponent(name)}`,
  }),
  undrain: (name) => ({
    title: `Take the drain of ${name} back?`,
    text: "It gets requests again, in steps where it must warm up.",
    yes: `Take back ${name}`,
    path: `undrain/${encodeURIComponent(name)}`,
  }),
  force: (name) => ({
    title: `Force ${name}?`,
    text: "This tier gets every request of its model, whatever its pressure says, until the time is over.",
    yes: `Force ${name}`,
    path: "force",
    query: { tier: name },
    isTimed: true,
  }),
  unforce: (name) => ({
    title: `End the force of ${name}?`,
    text: "The weights follow the telemetry again.",
    yes: "End it",
    path: "unforce",
    query: { model: name },
  }),
};

// `warning` is what else will follow, in this case.
export function confirm(order, name, access, { warning = "", onDone }) {
  asked = { ...ORDERS[order](name), access, onDone };
  at("title").textContent = asked.title;
  at("text").textContent = asked.text;
  at("warning").textContent = warning;
  at("yes").textContent = asked.yes;
  at("for-label").hidden = !asked.isTimed;
  // The history names whose token it is, whatever is written here.
  at("who").value = access.is.who || (localStorage.getItem(KEY) ?? "");
  at("who").readOnly = Boolean(access.is.who);
  at("why").value = "";
  at("error").textContent = "";
  dialog.showModal();
  (at("who").value ? at("why") : at("who")).focus();
}

at("no").addEventListener("click", () => dialog.close());

dialog.querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (!asked.access.is.who) localStorage.setItem(KEY, at("who").value);
  const given = { ...asked.query, who: at("who").value, why: at("why").value };
  if (asked.isTimed) given.for = at("for").value;
  at("yes").disabled = true;
  try {
    const answer = await asked.access.fetch(`${asked.path}?${new URLSearchParams(given)}`, { method: "POST" });
    if (answer.ok) {
      dialog.close();
      asked.onDone((await answer.json()).note);
    } else at("error").textContent = (await answer.json()).error ?? `Refused (${answer.status}).`;
  } catch {
    at("error").textContent = "The control plane does not answer; whether it was done, the events tell.";
  } finally {
    at("yes").disabled = false;
  }
});
