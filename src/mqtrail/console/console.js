{
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  const kept = `mqtrail-zone=${encodeURIComponent(zone)}`;
  if (!document.cookie.split("; ").includes(kept)) {
    document.cookie = `${kept}; path=/; max-age=31536000; samesite=strict`;
    if (zone !== "UTC" && document.cookie.split("; ").includes(kept)) location.reload();
  }
}
document.addEventListener("keydown", (event) => {
  const at = event.target;
  if (event.ctrlKey || event.metaKey || event.altKey || at.closest?.("input, textarea, select, [contenteditable]")) return;
  const goes = { h: "/", s: "/search", i: "/incidents", d: "/dead-letters", g: "/groups", l: "/latency", c: "/cluster", p: "/pipeline", a: "/alerts" }[event.key];
  if (event.key === "/") document.getElementById("query")?.focus();
  else if (event.key === "?") document.getElementById("help")?.showModal();
  else if (goes) location.href = goes;
  else return;
  event.preventDefault();
});
document.addEventListener("click", (event) => {
  if (event.target.closest?.("#help-button")) document.getElementById("help")?.showModal();
  const copies = event.target.closest?.("[data-copy]");
  if (copies) navigator.clipboard?.writeText(copies.previousElementSibling.textContent);
});
