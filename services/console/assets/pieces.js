// What all pages use. Text from the box is put in as text, never as HTML.
"use strict";
const THEMES = ["system", "light", "dark"];
const $ = (id) => document.getElementById(id);
// The address of what this console serves: pages lie in one folder, before which a proxy may have put a prefix.
const here = (path) => path.slice(1) || "./";

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text != null) element.textContent = text;
  return element;
}

function badge(text, kind) { return make("span", `badge ${kind}`, text); }

function meter(share, kind) {
  const outer = make("span", "meter"), inner = make("i", kind);
  inner.style.width = `${Math.min(Math.max(share, 0), 1) * 100}%`;
  outer.append(inner);
  return outer;
}

function metered(share, kind, text) { return [meter(share, kind), make("span", "figure", text)]; }

// Cells are texts, elements or arrays of them. A cell that says what it said before is left alone, so that a person can select in it, and a button in it
// keeps the focus; what the button does must not depend on the other cells.
function fill(table, columns, rows, nothing) {
  if (!table.tHead) {
    const row = table.createTHead().insertRow();
    for (const [title, className] of columns) row.append(make(title ? "th" : "td", className, title));
    table.createTBody();
  }
  table.tHead.hidden = !rows.length;
  const body = table.tBodies[0];
  const wanted = rows.length ? rows : [[nothing]];
  while (body.rows.length > wanted.length) body.deleteRow(-1);
  wanted.forEach((cells, index) => {
    const made = make("tr");
    cells.forEach((cell, column) => {
      const td = make("td", rows.length ? columns[column][1] : "empty");
      if (!rows.length) td.colSpan = columns.length;
      td.append(...[cell].flat());
      made.append(td);
    });
    const old = body.rows[index];
    if (!old) body.append(made);
    else if (old.cells.length !== made.cells.length) old.replaceWith(made);
    else [...made.cells].forEach((cell, column) => { if (old.cells[column].outerHTML !== cell.outerHTML) old.cells[column].replaceWith(cell); });
  });
}

// The Markdown of our own texts: `code` and [links](to pages of the documentation), which the console does not serve.
function prose(text) {
  return text.split(/(`[^`]+`|\[[^\]]+\]\([^)]+\))/).map((part) => {
    const linked = /^\[([^\]]+)\]\(([^)#]*)(#[^)]*)?\)$/.exec(part);
    if (linked) return linked[2] ? `${linked[1]} (docs/${linked[2]})` : linked[1];
    return part.startsWith("`") ? make("code", "", part.slice(1, -1)) : part;
  });
}

// `drawAgain` runs after each change: what is drawn with colours of the theme has to be made anew.
function followTheme(drawAgain) {
  const wanted = () => (THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "system");
  const set = (theme) => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    $("theme").textContent = `Theme: ${theme}`;
    localStorage.setItem("theme", theme);
    drawAgain();
  };
  $("theme").addEventListener("click", () => set(THEMES[(THEMES.indexOf(wanted()) + 1) % THEMES.length]));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => set(wanted()));
  set(wanted());
}

// A table that is wider than the screen is scrolled with the keyboard, too.
function makeScrollable(scroll, name) {
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", `Table: ${name}`);
}
for (const scroll of document.querySelectorAll(".scroll")) makeScrollable(scroll, scroll.closest("section").querySelector("h2")?.firstChild?.textContent.trim() || scroll.querySelector("table").id);

function offerZones() {
  const zones = [...new Set([ZONE, OWN_ZONE, "UTC", ...Intl.supportedValuesOf("timeZone")])];
  $("time-zone").append(...zones.map((name) => { const option = make("option", "", name); option.value = name; return option; }));
  $("time-zone").value = ZONE;
  $("time-zone").addEventListener("change", () => { localStorage.setItem("zone", $("time-zone").value); location.reload(); });
}
offerZones();
