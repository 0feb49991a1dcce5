"use strict";
(() => {
  const tip = document.getElementById("tip");
  const report = document.getElementById("report");
  const sorted = {}; // table id -> [column, direction]: kept when the content is replaced

  // Tooltips: whatever has data-tip.
  const place = (x, y) => {
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(8, Math.min(x + 14, innerWidth - box.width - 8)) + "px";
    tip.style.top = (y + 18 + box.height > innerHeight ? Math.max(8, y - box.height - 12) : y + 18) + "px";
  };
  const show = (target, x, y) => { tip.textContent = target.dataset.tip; tip.hidden = false; place(x, y); };
  const hide = () => { tip.hidden = true; };
  const pointed = (event) => {
    const target = event.target.closest("[data-tip]");
    target ? show(target, event.clientX, event.clientY) : hide();
  };
  document.addEventListener("pointerover", pointed);
  document.addEventListener("pointermove", pointed);
  document.addEventListener("focusin", (event) => {
    const target = event.target.closest("[data-tip]");
    if (!target) return;
    const box = target.getBoundingClientRect();
    show(target, box.right, box.top);
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", hide, true);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

  // Tables that sort: by data-v where a cell has one, unknown values last.
  const value = (row, column) => {
    const cell = row.cells[column];
    const raw = cell.dataset.v ?? cell.textContent.trim();
    return raw === "" || raw === "–" ? null : isNaN(raw) ? raw.toLowerCase() : Number(raw);
  };
  const sort = (table, column, direction) => {
    const rows = [...table.tBodies[0].rows].map((row) => [value(row, column), row]);
    rows.sort(([a], [b]) => a === null || b === null ? (a === null) - (b === null)
      : direction * (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1));
    table.tBodies[0].append(...rows.map(([, row]) => row));
    [...table.tHead.rows[0].cells].forEach((head, index) =>
      index === column ? head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending") : head.removeAttribute("aria-sort"));
    sorted[table.id] = [column, direction];
  };
  const headClicked = (event) => {
    const head = event.target.closest(".sortable thead th");
    if (!head || (event.type === "keydown" && event.key !== "Enter" && event.key !== " ")) return;
    if (event.type === "keydown") event.preventDefault();
    const again = head.getAttribute("aria-sort");
    const first = head.classList.contains("n") ? -1 : 1;
    sort(head.closest("table"), head.cellIndex, again ? (again === "ascending" ? -1 : 1) : first);
  };
  report.addEventListener("click", headClicked);
  report.addEventListener("keydown", headClicked);

  // Only ops whose names hold what was typed.
  const filter = () => {
    const box = document.getElementById("filter");
    if (!box) return;
    const wanted = box.value.trim().toLowerCase();
    for (const row of document.getElementById("optable").tBodies[0].rows)
      row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
  };
  report.addEventListener("input", (event) => { if (event.target.id === "filter") filter(); });

  const ready = () => {
    for (const head of report.querySelectorAll(".sortable thead th")) head.tabIndex = 0;
    for (const [id, [column, direction]] of Object.entries(sorted)) {
      const table = document.getElementById(id);
      if (table) sort(table, column, direction);
    }
    filter();
  };
  ready();

  // While a run goes on: ask for news, and replace the content where it stands.
  if (document.body.dataset.watch) {
    let seen = null;
    const scrolled = () => Object.fromEntries([...report.querySelectorAll("section .scroll")].map((box) =>
      [box.closest("section").id, [box.scrollLeft, box.scrollTop]]));
    const look = async () => {
      let pause = 1000;
      try {
        const news = await (await fetch("digest", { cache: "no-store" })).json();
        if (seen !== null && news.digest !== seen) {
          const page = await (await fetch("content", { cache: "no-store" })).text();
          const [typed, boxes] = [document.getElementById("filter")?.value, scrolled()];
          hide();
          report.innerHTML = page;
          if (typed) document.getElementById("filter").value = typed;
          ready();
          for (const [id, [left, top]] of Object.entries(boxes)) document.querySelector(`#${id} .scroll`)?.scrollTo(left, top);
        }
        seen = news.digest;
        if (news.ended) return;
      } catch { pause = 3000; } // the server may be gone, or come back
      setTimeout(look, pause);
    };
    look();
  }
})();
