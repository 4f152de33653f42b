// Makes pages live, sortable and keyboard-friendly. Without it they can be read and used as they are.
"use strict";
(() => {
  const all = (what, within = document) => [...within.querySelectorAll(what)];
  const one = (what, within = document) => within.querySelector(what);
  const read = (text) => new DOMParser().parseFromString(text, "text/html");

  // Live parts: the page is fetched again, and each part that has an id is replaced.

  let asking = false;
  let stale = false;
  const alive = one("#alive");

  const busy = () => {  // the user is using a part that would be replaced
    const at = document.activeElement;
    return document.hidden || selects() || one("#help[open], [data-live] :active") || (at && at.closest("[data-live]") && at.matches("input:not([type=checkbox]), select, textarea"));
  };

  const selects = () => {  // a selection of text that would be lost
    const text = getSelection();
    return !text.isCollapsed && Boolean(text.anchorNode.parentElement?.closest("[data-live]"));
  };

  // Rows keep their places while the page is used: what is about to be pressed does not change under the pointer.

  const USED = 30_000;  // milliseconds after the last pointer movement, click or key
  let used = Date.now();
  for (const kind of ["pointermove", "pointerdown", "keydown", "wheel"]) addEventListener(kind, () => { used = Date.now(); }, { passive: true });

  const hold = (part, before) => {  // known rows keep their order; new rows keep their position from the new page
    const place = new Map(before.map((row, number) => [row, number]));
    for (const body of all("tbody", part)) {
      const rows = [...body.rows];
      const known = rows.filter((row) => place.has(row.dataset.row));
      known.sort((a, b) => place.get(a.dataset.row) - place.get(b.dataset.row));
      body.append(...rows.map((row) => place.has(row.dataset.row) ? known.shift() : row));
    }
  };

  const renew = async () => {
    if (asking || busy() || !one("main [data-live]")) { stale = true; return; }
    asking = true; stale = false;
    try {
      const answer = await fetch(location.href, { headers: { "x-live": "1" }, redirect: "manual" });
      if (answer.type === "opaqueredirect") { location.reload(); return; }
      if (!answer.ok) return;
      const page = read(await answer.text());
      for (const part of all("[data-live][id]")) {
        const now = page.getElementById(part.id);
        if (!now) continue;
        for (const name of ["data-busy"]) now.hasAttribute(name) ? part.setAttribute(name, "") : part.removeAttribute(name);
        if (part.innerHTML === now.innerHTML) continue;
        const marked = new Set(all("input[type=checkbox]:checked", part).map((box) => box.value));
        const before = all("tr[data-row]", part).map((row) => row.dataset.row);
        const on = one("tr.on", part)?.dataset.row;
        const scrolled = all(".scroll", part).map((each) => each.scrollLeft);
        const at = part.contains(document.activeElement) ? document.activeElement : null;
        const line = at?.closest("tr[data-row]")?.dataset.row;
        const within = line === undefined ? "" : `tr[data-row="${CSS.escape(line)}"] `;
        const path = at && (at.id ? `#${at.id}` : at.matches("[data-all]") ? "[data-all]" : at.dataset.sort ? `[data-sort="${CSS.escape(at.dataset.sort)}"]` : at.value ? `[name="${CSS.escape(at.name)}"][value="${CSS.escape(at.value)}"]` : at.getAttribute("href") ? `[href="${CSS.escape(at.getAttribute("href"))}"]` : null);
        part.replaceChildren(...now.childNodes);
        for (const box of all("input[type=checkbox]", part)) box.checked = marked.has(box.value);
        for (const row of all("tr[data-row]", part)) row.classList.toggle("on", row.dataset.row === on);
        prepare(part);
        if (part.dataset.sorted) {
          const [place, up] = part.dataset.sorted.split(" ");
          const head = one("table[data-sortable] thead tr", part)?.children[place];
          if (head) sort(head.closest("table"), head, up === "true");
        }
        if (at || marked.size || Date.now() - used < USED) hold(part, before);
        all(".scroll", part).forEach((each, place) => { each.scrollLeft = scrolled[place] ?? 0; });
        if (path) one(within + path, part)?.focus({ preventScroll: true });
      }
      count();
    } catch { tell(false); } finally { asking = false; }
  };

  const tell = (good) => {
    if (!alive) return;
    alive.hidden = false;
    alive.classList.toggle("off", !good);
    alive.textContent = !good ? "not live" : selects() ? "paused" : "live";
  };

  if (document.body.dataset.events && one("main [data-live]")) {
    const source = new EventSource(document.body.dataset.events);
    source.addEventListener("tick", () => { tell(true); renew(); });
    source.onopen = () => tell(true);
    source.onerror = () => tell(false);
    addEventListener("pagehide", () => source.close());
    document.addEventListener("visibilitychange", () => { if (!document.hidden && stale) renew(); });
    setInterval(() => { if (one("[data-busy]")) renew(); }, 700);
  }

  // Buttons are disabled until a row is selected and the value that they need is entered.

  const NEEDED = { move: "to", reschedule: "delay", reprioritize: "pri", pause: "seconds" };

  const able = () => {
    for (const form of all("form")) {
      if (form.dataset.sent !== undefined) continue;
      const scope = one("input[name=scope][type=radio]:checked", form);
      const none = one("[data-marked]", form) && (!scope || scope.value === "marked") && !one("tbody input[type=checkbox]:checked", form);
      for (const button of all("button[name=op]", form)) {
        const needed = form.elements[NEEDED[button.value]];
        button.disabled = Boolean(none || (needed && !needed.value.trim()));
        button.title = none ? "Select a row first" : button.disabled ? ["Enter a value", needed.getAttribute("aria-label")].filter(Boolean).join(": ") : "";
      }
    }
  };

  document.addEventListener("input", able);

  // Selected rows: their number, and the box that selects all of a page.

  const count = () => {
    able();
    for (const form of all("form")) {
      const told = one("[data-marked]", form);
      if (!told) continue;
      const boxes = all("tbody input[type=checkbox]", form);
      const number = boxes.filter((box) => box.checked).length;
      told.textContent = `${number} selected`;
      const every = one("[data-all]", form);
      if (every) { every.checked = number > 0 && number === boxes.length; every.indeterminate = number > 0 && number < boxes.length; }
    }
  };

  document.addEventListener("change", (event) => {
    const box = event.target;
    if (box.matches("[data-all]")) for (const each of all("tbody input[type=checkbox]", box.closest("table"))) each.checked = box.checked;
    if (box.matches("[data-submit]")) box.form.requestSubmit();
    if (box.matches("tbody input[type=checkbox]")) { const marked = one("input[name=scope][value=marked]", box.form || document); if (marked) marked.checked = true; }
    count();
  });

  let last = null;  // with Shift, from the last selected row to this one
  document.addEventListener("click", (event) => {
    const box = event.target;
    if (!(box instanceof HTMLElement) || !box.matches("tbody input[type=checkbox]")) return;
    const boxes = all("tbody input[type=checkbox]", box.closest("table"));
    if (event.shiftKey && boxes.includes(last)) {
      const [from, to] = [boxes.indexOf(last), boxes.indexOf(box)].sort((a, b) => a - b);
      for (const each of boxes.slice(from, to + 1)) each.checked = box.checked;
      count();
    }
    last = box;
  });

  // Tables whose rows are all on the page: sorted here.

  const prepare = (within) => {
    for (const each of all(".script", within)) each.hidden = false;
    for (const table of all("table[data-sortable]", within)) {
      for (const head of all("thead th:not(.mark)", table)) {
        if (!head.textContent.trim() || one("button", head)) continue;
        const button = document.createElement("button");
        button.type = "button"; button.textContent = button.dataset.sort = head.textContent;
        head.replaceChildren(button);
        button.addEventListener("click", () => sort(table, head, head.getAttribute("aria-sort") !== "ascending"));
      }
    }
  };

  const sort = (table, head, up) => {
    const place = [...head.parentNode.children].indexOf(head);
    const live = table.closest("[data-live]");
    if (live) live.dataset.sorted = `${place} ${up}`;
    for (const each of all("th", table)) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = (row) => { const cell = row.children[place]; return cell?.dataset.v ?? cell?.textContent.trim() ?? ""; };
    const rows = all("tbody tr", table).map((row) => [value(row), row]);
    rows.sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }) * (up ? 1 : -1));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  };

  // Keys.

  const pages = Object.fromEntries(all("[data-go]").map((link) => [link.dataset.go, link.href]));
  let leads = false;

  const step = (by) => {
    const rows = all("tr[data-row]");
    if (!rows.length) return;
    const at = rows.findIndex((row) => row.classList.contains("on"));
    const next = rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? 0 : at + by))];
    for (const row of rows) row.classList.toggle("on", row === next);
    next.scrollIntoView({ block: "nearest" });
    one("[data-open]", next)?.focus({ preventScroll: true });
  };

  const help = one("#help");
  const keys = {
    j: () => step(1),
    k: () => step(-1),
    x: () => { one("tr.on input[type=checkbox]")?.click(); },
    o: () => { one("tr.on [data-open]")?.click(); },
    r: () => location.reload(),
    "[": () => one("a[rel=prev]")?.click(),
    "]": () => one("a[rel=next]")?.click(),
    "/": () => (one("[data-search]") || one("#find"))?.focus(),
    i: () => one("#find")?.focus(),
    "?": () => help.showModal(),
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open || document.documentElement.dataset.keys === "off") return;
    const at = event.target;
    if (at.matches("input:not([type=checkbox]):not([type=radio]), select, textarea")) {
      if (event.key === "Escape") at.blur();
      return;
    }
    if (leads) {
      leads = false;
      if (pages[event.key]) { event.preventDefault(); location.href = pages[event.key]; }
      return;
    }
    if (event.key === "g") { leads = true; setTimeout(() => { leads = false; }, 1500); return; }
    const what = keys[event.key];
    if (what) { event.preventDefault(); what(); }
  });

  one("#keys")?.addEventListener("click", () => help.showModal());

  // A form is sent once. One with a body stays on the page until it is done, and shows an error in its place.

  const unlock = (form) => {
    delete form.dataset.sent;
    for (const button of all("button", form)) button.disabled = false;
    able();
  };

  const refuse = (form, problem, field) => {
    for (const each of all("[aria-invalid]", form)) { each.removeAttribute("aria-invalid"); each.removeAttribute("aria-describedby"); }
    let told = one("[role=alert]", form);
    if (!told) {
      told = document.createElement("p");
      told.className = "note failed"; told.id = "refused"; told.setAttribute("role", "alert");
      form.append(told);
    }
    told.textContent = problem;
    const wrong = field && form.elements[field];
    if (wrong) { wrong.setAttribute("aria-invalid", "true"); wrong.setAttribute("aria-describedby", told.id); wrong.focus(); }
    unlock(form);
  };

  const renewToken = async (form) => {  // whether the token was stale because the console was restarted
    const now = one("input[name=csrf]", read(await (await fetch(`${document.body.dataset.base}/tubes`)).text()))?.value;
    if (!now || now === form.elements.csrf.value) return false;
    form.elements.csrf.value = now;
    return true;
  };

  const send = async (form, button) => {
    const fields = new URLSearchParams(new FormData(form));
    if (button?.name) fields.set(button.name, button.value);
    try {
      const answer = await fetch(form.action, { method: "POST", body: fields });
      const signedOut = new URL(answer.url).pathname === `${document.body.dataset.base}/login`;
      if (answer.redirected && !signedOut) { location.href = answer.url; return; }
      if (answer.status === 403 && await renewToken(form)) { await send(form, button); return; }
      const page = read(await answer.text());
      const problem = one("#problem", page) || one("main p", page) || page.body;
      refuse(form, signedOut ? "You are signed out: sign in again in another tab, then try again." : problem.textContent.trim() || `The console answered with status ${answer.status}.`, one("[aria-invalid]", page)?.name);
    } catch { refuse(form, "The console does not answer: try again."); }
  };

  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.getAttribute("method") !== "post") return;
    if (form.dataset.sent !== undefined) { event.preventDefault(); return; }
    form.dataset.sent = "";
    if (one("textarea[name=body]", form)) { event.preventDefault(); send(form, event.submitter); }
    setTimeout(() => { if (form.dataset.sent !== undefined) for (const button of all("button", form)) button.disabled = true; });
  });
  addEventListener("pageshow", () => all("form").forEach(unlock));

  prepare(document);
  count();
})();
