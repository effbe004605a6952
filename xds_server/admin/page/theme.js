// Light, dark, or as the system has it; remembered in this browser.
const KEY = "gpu-xds-theme";

export function followTheme(select) {
  const kept = localStorage.getItem(KEY);
  select.value = ["light", "dark"].includes(kept) ? kept : "auto";
  const apply = () => {
    document.documentElement.dataset.theme = select.value;
    localStorage.setItem(KEY, select.value);
  };
  select.addEventListener("change", apply);
  apply();
}
