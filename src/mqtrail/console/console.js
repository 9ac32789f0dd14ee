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
  else if (goes) location.href = document.documentElement.dataset.root + goes;
  else return;
  event.preventDefault();
});
document.addEventListener("click", (event) => {
  if (event.target.closest?.("#help-button")) document.getElementById("help")?.showModal();
  const copies = event.target.closest?.("[data-copy]");
  if (copies) navigator.clipboard?.writeText(copies.previousElementSibling.textContent);
});
{
  // The query bar completes the word at the caret: names of fields, then names that the lake knows (ARIA combobox).
  const LISTED_MAX = 20;
  const bar = () => document.getElementById("query");
  const list = () => document.getElementById("query-options");
  const visible = (text) =>
    text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (one) => "\\u" + one.codePointAt(0).toString(16).padStart(4, "0"));
  let names, found = [], marked = -1, asked = 0;
  const load = () =>
    (names ??= fetch(bar().dataset.names)
      .then((answer) => (answer.ok ? answer.json() : { names: {} }))
      .then((answer) => answer.names, () => ((names = undefined), {})));
  const word = () => {
    const at = bar().selectionStart ?? bar().value.length;
    const begun = bar().value.slice(0, at).match(/(?:^|\s)((?:[a-z]+[:>])?(?:"[^"]*|[^\s"]*))$/);
    return begun && { text: begun[1], begin: at - begun[1].length, end: at };
  };
  const close = () => {
    asked += 1;
    found = [];
    marked = -1;
    list().hidden = true;
    bar().setAttribute("aria-expanded", "false");
    bar().removeAttribute("aria-activedescendant");
  };
  const mark = (number) => {
    marked = number;
    [...list().children].forEach((one, place) => {
      one.setAttribute("aria-selected", place === number ? "true" : "false");
      if (place === number) one.scrollIntoView({ block: "nearest" });
    });
    if (number < 0) bar().removeAttribute("aria-activedescendant");
    else bar().setAttribute("aria-activedescendant", `query-option-${number}`);
  };
  const draw = (options) => {
    found = options.slice(0, LISTED_MAX);
    list().replaceChildren(
      ...found.map(({ label, note }, number) => {
        const one = document.createElement("li");
        one.id = `query-option-${number}`;
        one.setAttribute("role", "option");
        one.append(visible(label));
        if (note) one.appendChild(document.createElement("span")).textContent = note;
        return one;
      }));
    list().hidden = !found.length;
    bar().setAttribute("aria-expanded", found.length ? "true" : "false");
    mark(-1);
  };
  const open = async (all) => {
    const at = word();
    const turn = (asked += 1);
    if (!at || (!at.text && !all)) return close();
    const fields = JSON.parse(bar().dataset.fields);
    const of = at.text.match(/^([a-z]+):"?([^"]*)$/);
    if (!of) {
      const some = fields.filter(([name]) => name.startsWith(at.text));
      return draw(some.map(([name, note]) => ({ label: name, note, text: name })));
    }
    const loaded = await load();
    if (turn !== asked) return;
    const known = Object.hasOwn(loaded, of[1]) ? loaded[of[1]] : [];
    const begun = of[2].toLowerCase();
    const rank = (name) => (name.toLowerCase().startsWith(begun) ? 0 : 1);
    const some = known.filter((name) => !name.includes('"') && name.toLowerCase().includes(begun));
    some.sort((one, other) => rank(one) - rank(other));
    if (some.length === 1 && some[0] === of[2]) return close();
    draw(some.map((name) => ({ label: name, text: `${of[1]}:${/\s/.test(name) ? `"${name}"` : name} ` })));
  };
  const choose = (number) => {
    const at = word(), { text } = found[number], value = bar().value;
    const rest = value.slice(at.end).replace(at.text.includes('"') ? /^[^"]*"?\s?/ : /^[^\s"]*\s?/, "");
    bar().value = value.slice(0, at.begin) + text + rest;
    bar().setSelectionRange(at.begin + text.length, at.begin + text.length);
    open(false);
  };
  document.addEventListener("input", (event) => {
    if (event.target.id === "query") open(false);
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.id !== "query" || event.isComposing) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && found.length) mark((marked + step + found.length + (marked < 0 && step < 0 ? 1 : 0)) % found.length);
    else if (step === 1) open(true);
    else if (event.key === "Enter" && marked >= 0) choose(marked);
    else if (event.key === "Escape" && found.length) close();
    else return;
    event.preventDefault();
  });
  document.addEventListener("pointerdown", (event) => {
    const one = event.target.closest?.("#query-options li");
    if (!one) return;
    event.preventDefault();  // the bar keeps the focus
    choose([...list().children].indexOf(one));
  });
  document.addEventListener("focusout", (event) => {
    if (event.target.id === "query") close();
  });
}
{
  // Live parts are drawn again. What the reader opened stays open, the focus and the place in a table stay, and while
  // text is selected the page waits.
  const part = (one) => one.closest("section")?.querySelector("h2")?.textContent ?? "";
  const text = (one) => one.getAttribute("aria-label") ?? one.textContent;
  const key = (one) => {
    const named = one.matches("details") ? one.querySelector("summary") : one;
    return [one.tagName, part(one), named ? text(named).replace(/\s*\(\d+\)$/, "") : ""].join("\n");
  };
  const opened = new Map(), scrolled = new Map();
  let focused = null, isReading = false;
  const inMain = (one) => one instanceof Element && one.closest("main");
  document.addEventListener("toggle", (event) => {
    if (inMain(event.target) && event.target.matches("details")) opened.set(key(event.target), event.target.open);
  }, true);
  document.addEventListener("scroll", (event) => {
    if (inMain(event.target) && event.target.matches(".scroll"))
      scrolled.set(key(event.target), [event.target.scrollLeft, event.target.scrollTop]);
  }, true);
  document.addEventListener("focusin", (event) => {
    focused = inMain(event.target) ? { one: event.target, key: key(event.target) } : null;
  });
  document.addEventListener("pointerdown", () => (focused = null));
  document.addEventListener("selectionchange", () => {
    const chosen = getSelection();
    const is = !chosen.isCollapsed && Boolean(inMain(chosen.anchorNode?.parentElement));
    if (is !== isReading) emitEvent("reading", (isReading = is));
  });
  const all = (node, wanted) => [...(node.matches(wanted) ? [node] : []), ...node.querySelectorAll(wanted)];
  new MutationObserver((changes) => {
    const added = changes.flatMap((one) => [...one.addedNodes]).filter((one) => one.isConnected && inMain(one));
    for (const node of added) {
      for (const one of all(node, "details")) if (opened.has(key(one))) one.open = opened.get(key(one));
      for (const one of all(node, ".scroll")) if (scrolled.has(key(one))) one.scrollTo(...scrolled.get(key(one)));
      if (!focused || focused.one.isConnected || document.activeElement !== document.body) continue;
      const same = all(node, focused.one.tagName).find((one) => key(one) === focused.key);
      if (same) same.focus({ preventScroll: true });
    }
  }).observe(document, { childList: true, subtree: true });
}
