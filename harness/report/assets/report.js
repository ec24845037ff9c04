/* Filters and the open cell live in the address (#v=FAIL&runner=v2&q=text&case=anchor);
   everything on the page follows from it. No state anywhere else, no network. */
(() => {
  "use strict";
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const index = JSON.parse($("#index").textContent);
  const known = new Map(index.cells.map((cell) => [cell.a, cell]));
  const articles = new Map($$("article.case").map((el) => [el.dataset.case, el]));
  const links = $$("#grid a.cell");
  const form = $("#filters"), search = $("#q"), clear = $("#clear"), announce = $("#announce");
  let opened = null;

  const encode = (text) => encodeURIComponent(text).replace(/%(2F|3A|40|2C|2B)/g, decodeURIComponent);
  const decode = (text) => {
    try { return decodeURIComponent(text); } catch { return text; }
  };

  function readState() {
    const state = { v: [], q: "", case: "", axes: {} };
    for (const part of location.hash.slice(1).split("&")) {
      const at = part.indexOf("=");
      if (at < 1) continue;
      const name = part.slice(0, at), value = decode(part.slice(at + 1));
      if (name === "v") state.v = value.split(",").filter(Boolean);
      else if (name === "q") state.q = value;
      else if (name === "case") state.case = value;
      else if (index.axes.includes(name)) state.axes[name] = value;
    }
    return state;
  }

  function hashOf(state) {
    const parts = [];
    if (state.v.length) parts.push("v=" + state.v.join(","));
    for (const name of index.axes) if (state.axes[name]) parts.push(name + "=" + encode(state.axes[name]));
    if (state.q) parts.push("q=" + encode(state.q));
    if (state.case) parts.push("case=" + encode(state.case));
    return "#" + parts.join("&");
  }

  function go(change, { replace = false } = {}) {
    const hash = hashOf({ ...readState(), ...change });
    if (hash === (location.hash || "#")) return;
    if (replace) {
      location.replace(hash);
    } else {
      location.hash = hash;
    }
  }

  function matches(cell, state) {
    if (state.v.length && !state.v.includes(cell.v)) return false;
    for (const name of index.axes) if (state.axes[name] && cell[name] !== state.axes[name]) return false;
    const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
    return words.every((word) => cell.t.includes(word));
  }

  /* A hash without scripts spells blanks as underscores, as element ids must. */
  const find = (anchor) => known.get(anchor) || index.cells.find((c) => c.id === "case=" + anchor);

  function render() {
    const state = readState();
    for (const pill of $$(".pill")) pill.setAttribute("aria-pressed", state.v.includes(pill.dataset.verdict));
    for (const name of index.axes) form.elements[name].value = state.axes[name] || "";
    if (document.activeElement !== search) search.value = state.q;
    const filtered = state.v.length > 0 || state.q !== "" || Object.values(state.axes).some(Boolean);
    clear.hidden = !filtered;
    let shown = 0;
    for (const link of links) {
      const on = matches(known.get(link.dataset.case), state);
      shown += on;
      link.classList.toggle("off", !on);
      link.toggleAttribute("aria-disabled", !on);
    }
    for (const row of $$("#grid tbody tr")) row.classList.toggle("off", !$("a.cell:not(.off)", row));
    $("#shown").textContent = filtered ? `${shown} of ${links.length} cells match` : "";
    open(state, filtered);
  }

  function open(state, filtered) {
    let cell = find(state.case);
    if (!cell && filtered) cell = known.get((links.find((l) => !l.classList.contains("off")) || { dataset: {} }).dataset.case);
    const anchor = (cell || known.get(index.first) || index.cells[0] || {}).a;
    for (const [name, article] of articles) article.classList.toggle("open", name === anchor);
    for (const link of links) {
      const current = link.dataset.case === anchor;
      current ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current");
    }
    rove($("#grid a.cell[aria-current]:not(.off)") || links.find((l) => !l.classList.contains("off")));
    if (anchor === opened) return;
    const first = opened === null;
    opened = anchor;
    const article = articles.get(anchor);
    if (!article) return;
    for (const strip of $$(".strip", article)) {
      const mark = $("li.f", strip);
      if (mark) strip.scrollLeft = Math.max(0, mark.offsetLeft - strip.clientWidth / 3);
    }
    if (first && !state.case) return;
    announce.textContent = "Opened " + article.getAttribute("aria-label");
    if (innerWidth <= 1000) article.scrollIntoView();
    else if (article.getBoundingClientRect().top < 0) article.scrollIntoView();
  }

  /* One stop for Tab in the whole grid; the arrows move it. */
  function rove(link) {
    if (!link) return;
    for (const other of links) other.tabIndex = other === link ? 0 : -1;
  }

  function step(from, key) {
    const cells = links.filter((l) => !l.classList.contains("off")).map((l) => {
      const box = l.getBoundingClientRect();
      return { l, x: box.left + box.width / 2, y: box.top + box.height / 2 };
    });
    const box = from.getBoundingClientRect();
    const x = box.left + box.width / 2, y = box.top + box.height / 2;
    const ahead = {
      ArrowRight: (c) => [c.x - x, Math.abs(c.y - y)], ArrowLeft: (c) => [x - c.x, Math.abs(c.y - y)],
      ArrowDown: (c) => [c.y - y, Math.abs(c.x - x)], ArrowUp: (c) => [y - c.y, Math.abs(c.x - x)],
    }[key];
    const best = cells.filter((c) => c.l !== from && ahead(c)[0] > 4)
      .map((c) => ({ l: c.l, d: ahead(c)[0] + 50 * ahead(c)[1] })).sort((a, b) => a.d - b.d)[0];
    return best && best.l;
  }

  function moveTo(link) {
    if (!link) return;
    rove(link);
    link.focus();
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-case]");
    if (link && !(event.metaKey || event.ctrlKey || event.shiftKey || event.button)) {
      event.preventDefault();
      go({ case: link.dataset.case });
      return;
    }
    const pill = event.target.closest(".pill");
    if (pill) {
      const v = readState().v, name = pill.dataset.verdict;
      go({ v: v.includes(name) ? v.filter((x) => x !== name) : [...v, name], case: "" });
    }
    const button = event.target.closest(".copy");
    if (button) copy($("code", button.parentElement).textContent, button);
  });

  async function copy(text, button) {
    let done = false;
    try {
      await navigator.clipboard.writeText(text);
      done = true;
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      area.style.position = "fixed";
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
      button.focus();
    }
    button.textContent = done ? "copied" : "press Ctrl+C";
    if (!done) getSelection().selectAllChildren($("code", button.parentElement));
    setTimeout(() => { button.textContent = "copy"; }, 1600);
  }

  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    const here = event.target.closest && event.target.closest("#grid a.cell");
    if (event.key === "/" && !typing) {
      event.preventDefault();
      search.focus();
      search.select();
    } else if (event.key === "Escape") {
      search.value = "";
      if (typing) moveTo(links.find((l) => l.tabIndex === 0));
      go({ v: [], q: "", axes: {} });
    } else if (here && event.key.startsWith("Arrow")) {
      event.preventDefault();
      moveTo(step(here, event.key));
    } else if (here && (event.key === "Home" || event.key === "End")) {
      event.preventDefault();
      const row = $$("a.cell:not(.off)", here.closest("tr"));
      moveTo(row[event.key === "Home" ? 0 : row.length - 1]);
    } else if (!typing && !here && event.key.startsWith("Arrow") && event.target === document.body) {
      const start = links.find((l) => l.tabIndex === 0);
      if (start && /Left|Right/.test(event.key)) moveTo(start);
    }
  });

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    moveTo(links.find((l) => !l.classList.contains("off")));
  });
  form.addEventListener("change", (event) => {
    if (event.target.name && event.target !== search) {
      go({ axes: { ...readState().axes, [event.target.name]: event.target.value }, case: "" });
    }
  });
  search.addEventListener("input", () => go({ q: search.value, case: "" }, { replace: true }));
  clear.addEventListener("click", () => { search.value = ""; go({ v: [], q: "", axes: {} }); });

  const themes = ["auto", "light", "dark"], toggle = $("#theme"), root = document.documentElement;
  function showTheme() {
    const theme = root.dataset.theme || "auto";
    $("span", toggle).textContent = theme;
    toggle.setAttribute("aria-label", "Colours: " + (theme === "auto" ? "automatic" : theme));
  }
  toggle.addEventListener("click", () => {
    const next = themes[(themes.indexOf(root.dataset.theme || "auto") + 1) % themes.length];
    if (next === "auto") delete root.dataset.theme;
    else root.dataset.theme = next;
    try { localStorage.setItem("harness-theme", next); } catch { /* then it holds for this visit */ }
    showTheme();
  });

  addEventListener("hashchange", render);
  showTheme();
  render();
})();
