// Requests to the box, what is shown while it does not answer, and dialogs. Text from the box is put in as text, never as HTML.
"use strict";
const KAFKA_MS_MAX = 25000; // the console answers within 20 s, if only that the cluster does not

class Refused extends Error {
  constructor(status, document) { super(document.error ?? `status ${status}`); this.status = status; this.column = document.column; }
}

async function answered(path, options) {
  const response = await fetch(here(path), { cache: "no-store", signal: AbortSignal.timeout(KAFKA_MS_MAX), ...options });
  const document = await response.json().catch(() => ({}));
  if (response.status === 401) goToLogin();
  if (!response.ok) throw new Refused(response.status, document);
  return document;
}

// The session is over, or there is none yet.
function goToLogin() {
  const page = `/${location.pathname.split("/").pop()}`; // a proxy may have put a prefix before it
  if (page !== "/login") location.assign(`login?${new URLSearchParams({ next: page + location.search })}`);
}

const getJson = (path, parameters = {}) => answered(`${path}?${new URLSearchParams(parameters)}`, { headers: { "X-Millrace": "console" } });
// The token is asked for each time: in another tab someone else may have logged in.
async function postJson(path, body) {
  const { token } = await getJson("/api/rights");
  const headers = { "X-Millrace": "console", "Content-Type": "application/json", ...(token && { "X-Millrace-Token": token }) };
  return answered(path, { method: "POST", body: JSON.stringify(body), headers });
}

const problemText = (error) => (error instanceof Refused ? error.message : error.name === "TimeoutError" ? "no answer from the box in time" : `no answer from the box: ${error.message}`);

function showTrouble(error) {
  $("trouble").hidden = !error;
  $("trouble").textContent = error ? `${problemText(error)} · asked again every few seconds` : "";
  document.body.classList.toggle("stale", Boolean(error));
}

// Calls `look` again and again while the page can be seen, one at a time; returns a function that calls it at once.
function keepLooking(look, milliseconds) {
  let timer = null, isRunning = false, isWanted = false;
  const run = async () => {
    clearTimeout(timer);
    isWanted = isRunning;
    if (isRunning) return;
    isRunning = true;
    try {
      await look();
      showTrouble(null);
    } catch (error) {
      showTrouble(error);
    }
    isRunning = false;
    if (isWanted) run();
    else if (!document.hidden) timer = setTimeout(run, milliseconds);
  };
  document.addEventListener("visibilitychange", () => { if (!document.hidden) run(); });
  run();
  return run;
}

// What changes something has the class `change`, and is shown only where the box allows it; what changes topics also `admin`.
async function showRights() {
  const { may_change, why, person, refused = [] } = await getJson("/api/rights");
  const mayAll = may_change && !refused.length, hasAdmin = document.querySelector(".change.admin");
  document.body.classList.toggle("may-change", may_change);
  document.body.classList.toggle("may-administer", mayAll);
  $("rights").hidden = mayAll || (may_change && !hasAdmin);
  $("rights").textContent = may_change ? `Topics are not created, altered or deleted here: ${person?.user} is ${person?.role}, and that needs the role admin.` : `Nothing is changed here: ${why}.`;
}

// Each page shows who is logged in.
async function showPerson() {
  const { person } = await getJson("/api/rights");
  if (!person) return;
  $("person").textContent = `${person.user} · ${person.role}`;
  $("person").href = "login";
  $("person").hidden = false;
}
if (location.pathname.endsWith("/login")) followTheme(() => {});
else showPerson().catch(() => {});

const parameter = (name) => new URLSearchParams(location.search).get(name) ?? "";

function link(text, path, parameters = {}) {
  const made = make("a", "", text), query = new URLSearchParams(parameters).toString();
  made.href = query ? `${here(path)}?${query}` : here(path);
  return made;
}

function button(text, className, onClick) {
  const made = make("button", className, text);
  made.type = "button";
  made.addEventListener("click", onClick);
  return made;
}

function labelled(text, input, hint) {
  const label = make("label", "", text);
  label.append(input);
  if (hint) label.append(make("small", "", hint));
  return label;
}

function inputOf({ type = "text", value = "", choices, required, placeholder }) {
  const made = make(choices ? "select" : type === "area" ? "textarea" : "input");
  if (choices) made.append(...choices.map(([name, text]) => { const option = make("option", "", text); option.value = name; return option; }));
  else if (type !== "area") made.type = type;
  if (type === "number") made.min = 0;
  if (value !== "" && value != null) made.value = value;
  made.required = Boolean(required);
  if (placeholder) made.placeholder = placeholder;
  made.autocomplete = "off";
  made.spellcheck = false;
  return made;
}

// A dialog with `fields` ({name, label, …}). `preview` shows what would happen, and has to be pressed before `run`; both get the values.
// Stays open, with the reason, if the box refuses.
function openDialog({ title, text, fields = [], action, isDanger, preview, run }) {
  const dialog = make("dialog"), form = make("form"), shown = make("div", "preview"), problem = make("p", "problem"), buttons = make("div", "buttons");
  const inputs = fields.map((field) => [field, inputOf(field)]);
  const values = () => Object.fromEntries(inputs.map(([field, input]) => [field.name, input.value]));
  const heading = make("h2", "", title);
  heading.id = "dialog-title";
  dialog.setAttribute("aria-labelledby", heading.id);
  problem.setAttribute("role", "alert");
  problem.hidden = true;
  const act = make("button", isDanger ? "danger" : "main", action);
  const check = preview && button("Preview", "main", () => attempt(async () => { shown.replaceChildren(...[await preview(values())].flat()); act.disabled = false; }));
  const attempt = async (work) => {
    problem.hidden = true;
    if (!form.reportValidity()) return;
    for (const each of buttons.children) each.inert = true;
    try {
      await work();
    } catch (error) {
      problem.textContent = problemText(error);
      problem.hidden = false;
    }
    for (const each of buttons.children) each.inert = false;
  };
  act.disabled = Boolean(preview);
  form.addEventListener("input", () => { act.disabled = Boolean(preview); shown.replaceChildren(); });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (act.disabled) check.click();
    else attempt(async () => { await run(values()); end(); });
  });
  const end = () => { dialog.close(); dialog.remove(); };
  dialog.addEventListener("close", end); // by Escape
  buttons.append(...[check, act, button("Cancel", "", end)].filter(Boolean));
  form.append(heading, ...(text ? [make("p", "", text)] : []), ...inputs.map(([field, input]) => labelled(field.label, input, field.hint)), shown, problem, buttons);
  dialog.append(form);
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}
