"use strict";
const data = JSON.parse(document.getElementById("raw-data").textContent);

function cellValue(row, index) {
  const cell = row.cells[index];
  const sort = cell.dataset.sort;
  if (sort === undefined) return cell.textContent.trim() === "—" ? null : cell.textContent.trim();
  return isNaN(sort) ? sort : Number(sort);
}

function compare(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}

// Missing values stay last in both directions.
function sortBy(table, index) {
  const heads = [...table.tHead.rows[0].cells];
  const falling = heads[index].getAttribute("aria-sort") === "ascending";
  heads.forEach((head) => head.removeAttribute("aria-sort"));
  heads[index].setAttribute("aria-sort", falling ? "descending" : "ascending");
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [cellValue(row, index), row]);
  rows.sort(([a], [b]) => (a === null || b === null ? compare(a, b) : falling ? compare(b, a) : compare(a, b)));
  body.append(...rows.map(([, row]) => row));
}

function filter(block) {
  const words = block.querySelector("input").value.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = [...block.querySelector("tbody").rows];
  let shown = 0;
  for (const row of rows) {
    const texts = [...row.cells].map((cell) => cell.textContent.toLowerCase().trim());
    // "=1Mi" asks for a whole cell, anything else for a part of one.
    const fits = words.every((word) => texts.some((text) => (word[0] === "=" ? text === word.slice(1) : text.includes(word))));
    row.hidden = !fits;
    shown += fits;
  }
  block.querySelector(".count").textContent = `${shown} of ${rows.length} rows`;
}

document.querySelectorAll(".block.tools").forEach((block) => {
  const table = block.querySelector("table");
  block.querySelectorAll("th button").forEach((button) => {
    button.addEventListener("click", () => sortBy(table, button.parentElement.cellIndex));
  });
  block.querySelector("input").addEventListener("input", () => filter(block));
  filter(block);
});

// A number of the summary leads to its rows: #rows-prefill-64Ki.
function showPoint() {
  const found = /^#rows-([a-z_]+)-(\w+)$/.exec(location.hash);
  const block = document.getElementById("raw");
  if (!found || !block) return;
  block.querySelector("input").value = `=${found[1]} =${found[2]}`;
  filter(block);
  block.scrollIntoView();
}
addEventListener("hashchange", showPoint);
showPoint();

const dialog = document.getElementById("row");
function showRow(index) {
  const { files, fields } = data[index];
  const links = dialog.querySelector("p");
  links.replaceChildren(
    ...Object.entries(files).map(([name, path]) => Object.assign(document.createElement("a"), { href: path, textContent: name })),
  );
  const body = dialog.querySelector("tbody");
  body.replaceChildren();
  for (const [name, value] of Object.entries(fields)) {
    const row = body.insertRow();
    row.insertCell().textContent = name;
    row.insertCell().textContent = value;
  }
  dialog.showModal();
}
document.getElementById("raw").addEventListener("click", (event) => {
  const button = event.target.closest("button[data-row]");
  if (button) showRow(Number(button.dataset.row));
});
dialog.querySelector("button").addEventListener("click", () => dialog.close());
