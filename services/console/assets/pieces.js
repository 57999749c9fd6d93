// What all pages use. Text from the box is put in as text, never as HTML.
"use strict";
const THEMES = ["system", "light", "dark"];
const $ = (id) => document.getElementById(id);

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text != null) element.textContent = text;
  return element;
}

function badge(text, kind) { return make("span", `badge ${kind}`, text); }

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
