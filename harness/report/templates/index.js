"use strict";
// Filters of the table. Without this script the table shows everything.
(() => {
  const form = document.getElementById("filters");
  if (!form) return;
  const verdict = document.getElementById("by-verdict");
  const text = document.getElementById("by-text");
  const shown = document.getElementById("shown");
  const rows = Array.from(document.getElementById("results").rows, (row) => ({
    row,
    verdict: row.dataset.verdict,
    text: row.textContent.toLowerCase(),
  }));
  const show = () => {
    const words = text.value.toLowerCase().split(/\s+/);
    let count = 0;
    for (const each of rows) {
      const wanted =
        (!verdict.value || each.verdict === verdict.value) &&
        words.every((word) => each.text.includes(word));
      each.row.hidden = !wanted;
      count += wanted;
    }
    shown.textContent = `${count} of ${rows.length}`;
  };
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  for (const kind of ["input", "change"]) form.addEventListener(kind, show);
  show();
})();
