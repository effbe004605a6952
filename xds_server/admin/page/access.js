// Who one is here and what one may. The token is kept by this tab alone: it is sent only where this page puts it.
const KEY = "gpu-xds-token";
const dialog = document.getElementById("login");
const at = (name) => document.getElementById(`login-${name}`);
const UNKNOWN = { who: "", role: null, may_look: true, may_order: false, why: "The control plane has not said yet.", has_tokens: false };

export class Access {
  constructor() {
    this.is = UNKNOWN;
    this.button = document.getElementById("who-button");
    this.button.addEventListener("click", () => (sessionStorage.getItem(KEY) ? this.leave() : this.ask()));
    at("no").addEventListener("click", () => dialog.close());
    dialog.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.enter(at("token").value.trim());
    });
  }

  // Ask the control plane anew: a token may have been withdrawn, or have another role now.
  async load(signal) {
    this.is = await (await this.fetch("api/access", { signal })).json();
    this.draw();
  }

  fetch(path, options = {}) {
    const token = sessionStorage.getItem(KEY);
    return fetch(path, token ? { ...options, headers: { authorization: `Bearer ${token}` } } : options);
  }

  draw() {
    const { who, role, may_order: mayOrder, has_tokens: hasTokens } = this.is;
    const text = who ? `${who} (${role})` : mayOrder ? "" : role ? "looks only" : "nobody";
    document.getElementById("who").textContent = text;
    document.getElementById("who-part").hidden = !text && !hasTokens;
    this.button.hidden = !hasTokens;
    this.button.textContent = sessionStorage.getItem(KEY) ? "Log out" : "Log in…";
  }

  ask(why = "") {
    at("error").textContent = why;
    at("token").value = "";
    if (!dialog.open) dialog.showModal();
    at("token").focus();
  }

  async enter(token) {
    // A header has no other characters.
    if (!/^[!-~]+$/.test(token)) return this.ask("That is no token.");
    try {
      const answer = await fetch("api/access", { headers: { authorization: `Bearer ${token}` } });
      const found = await answer.json();
      if (!found.who) return this.ask(found.why);
    } catch {
      return this.ask("The control plane does not answer.");
    }
    sessionStorage.setItem(KEY, token);
    location.reload();
  }

  leave() {
    sessionStorage.removeItem(KEY);
    location.reload();
  }
}
