// The search page: /api/search streams lines of JSON. Records are put in as text, never as HTML. Weak spot: the times of the matches are counted by a
// second search, which begins when the first has ended.
"use strict";
const LIVE_MAX = 1000; // lines that a search which follows keeps, if `Records` does not say fewer; older ones leave
const LIVE_MS = 100; // between two changes of the page while it follows: each lays the table out
const LIVE_BUDGET_MS = 25; // of one change; the rest waits for the next one
const SHOWN_CHARACTERS = 4000;
const WHOLE_CHARACTERS = 100000;
const BARS_MAX = 120;
const BUSY_TRIES = 5;
const BUSY_MS = 400;
const TOPICS_EVERY_MS = 10000;
const SEVERITIES = ["emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"];
const UNITS = [["second", 1000], ["minute", 60000], ["hour", 3600000], ["day", 86400000]];
const AGE_MS = { m: 60000, h: 3600000, d: 86400000 };
const ASKED = { headers: { "X-Millrace": "search" } };

let running = null; // the AbortController of what runs
let found = []; // the records that are shown
let marks = null; // a RegExp of what the query looks for
let waiting = []; // records that follow, before the next frame
let pausedAt = 0;

// ---- times

const inputText = (milliseconds) => { const date = new Date(milliseconds); return `${dayText(date)}T${clockText(date)}`; };

function chosenTimes() {
  const range = $("range").value, now = Date.now();
  // The box subtracts an age from its own time: the clock of this machine may be another.
  if (range !== "fixed") return { from: now - parseInt(range, 10) * AGE_MS[range.slice(-1)], to: now, asked: { since: range } };
  const from = momentOf($("since").value), to = $("until").value ? momentOf($("until").value) : now;
  return { from, to, asked: { since: Math.floor(from), until: Math.ceil(to) } };
}

function showFixed() { for (const label of document.querySelectorAll(".fixed")) label.hidden = $("range").value !== "fixed"; }

function chooseTimes(from, to) {
  $("range").value = "fixed";
  $("since").value = inputText(from);
  $("until").value = inputText(to);
  showFixed();
}

// ---- the state of the page is in its address

const FIELDS = ["topic", "query", "range", "since", "until", "limit", "context"];

function writeAddress() {
  const state = new URLSearchParams();
  for (const name of FIELDS) if ($(name).value && ($("range").value === "fixed" || !["since", "until"].includes(name))) state.set(name, $(name).value);
  history.replaceState(null, "", `#${state}`);
}

function readAddress() {
  const state = new URLSearchParams(location.hash.slice(1));
  for (const name of FIELDS) if (state.has(name)) $(name).value = state.get(name);
  if (!$("range").value) $("range").value = "1h";
  if (!$("limit").value) $("limit").value = "200";
  if (!$("context").value) $("context").value = "0";
  showFixed();
  return state.size > 0;
}

// ---- what a query looks for is marked

const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

function marksOf(document) {
  const texts = document.marks.flatMap((mark) => mark.pieces ?? []).filter((text) => text).sort((one, other) => other.length - one.length);
  return texts.length ? new RegExp(`(${texts.map(escaped).join("|")})`, "iu") : null;
}

function marked(text) {
  if (!marks) return [text];
  return text.split(marks).map((part, index) => (index % 2 ? make("mark", "", part) : part)).filter((part) => part !== "");
}

// ---- one record

// Of any value in a record. Values that JSON.stringify refuses (nested too deep) must not hide the records after them.
function textOf(value) {
  if (value == null) return "";
  if (typeof value === "string") return value;
  try { return JSON.stringify(value); } catch { return "(nested too deep to show)"; }
}

function parsed(record) {
  if (record.value == null) return { fields: null, message: `(not UTF-8) ${record.value_base64}` };
  try {
    const fields = JSON.parse(record.value);
    if (fields && typeof fields === "object" && !Array.isArray(fields)) return { fields, message: typeof fields.message === "string" ? fields.message : record.value };
  } catch { /* a text */ }
  return { fields: null, message: record.value };
}

function severityOf(fields) {
  const value = fields?.severity;
  const number = typeof value === "number" ? value : SEVERITIES.indexOf(value);
  return SEVERITIES[number] ? [SEVERITIES[number], number <= 3 ? "bad" : number === 4 ? "warn" : ""] : [textOf(value), ""];
}

function* leaves(fields, prefix = "") {
  for (const [name, value] of Object.entries(fields)) {
    if (value && typeof value === "object" && !Array.isArray(value)) yield* leaves(value, `${prefix}${name}.`);
    else yield [prefix + name, value];
  }
}

const quoted = (value) => (/^[\w.:-]+$/u.test(value) ? value : `"${value.replace(/["\\]/g, "\\$&")}"`);

function addToQuery(name, value, operator) {
  const text = typeof value === "number" ? `${name}${operator}${value}` : `${name}${operator}${quoted(String(value))}`;
  const query = $("query").value.trim();
  $("query").value = /\bor\b/i.test(query) ? `(${query}) ${text}` : `${query} ${text}`.trim();
  start();
}

function wholeRecord(record) {
  const { fields } = parsed(record);
  const row = make("tr", "whole"), cell = make("td"), list = make("dl");
  cell.colSpan = 5;
  const places = [["topic", $("topic").value], ["partition", record.partition], ["offset", record.offset]];
  for (const [name, value] of places) list.append(make("dt", "", name), make("span"), make("dd", "", String(value)));
  for (const [name, value] of fields ? leaves(fields) : []) {
    const buttons = make("span");
    const isPlain = (typeof value === "string" && value.length <= 200) || typeof value === "number";
    if (isPlain && /^[\w.-]+$/u.test(name)) {
      for (const [sign, operator, title] of [["+", "=", "Only records with this value"], ["−", "!=", "Without records of this value"]]) {
        const button = make("button", "", sign);
        button.type = "button";
        button.title = title;
        button.addEventListener("click", () => addToQuery(name, value, operator));
        buttons.append(button);
      }
    }
    list.append(make("dt", "", visible(name)), buttons, make("dd", "", visible(cut(textOf(value), WHOLE_CHARACTERS))));
  }
  cell.append(list, make("pre", "", visible(cut(record.value ?? record.value_base64, WHOLE_CHARACTERS))));
  row.append(cell);
  return row;
}

function rowOf(record, kind = "record") {
  const { fields, message } = parsed(record);
  const row = make("tr", kind);
  const [severity, colour] = severityOf(fields);
  const text = (value) => make("td", "short", visible(cut(textOf(value), 200)));
  const shown = make("td", "message"), severityCell = make("td");
  if (severity) severityCell.append(badge(visible(cut(severity, 20)), colour));
  shown.append(...marked(visible(cut(message, SHOWN_CHARACTERS))));
  row.append(make("td", "", timeText(record.timestamp)), severityCell, text(fields?.host), text(fields?.app), shown);
  if (colour) row.classList.add(colour);
  return row;
}

// With the records around it; the newest is on top.
function recordBody(record) {
  const body = make("tbody"), row = rowOf(record);
  const around = (records = []) => records.toReversed().map((each) => rowOf(each, "record context"));
  let whole = null;
  row.tabIndex = 0;
  row.setAttribute("aria-expanded", "false");
  const toggle = () => {
    const isOpen = whole != null;
    if (!isOpen && isFollowing() && !pausedAt) follow(); // it would move away under its reader
    if (isOpen) { whole.remove(); whole = null; } else row.after(whole = wholeRecord(record));
    row.setAttribute("aria-expanded", String(!isOpen));
  };
  row.addEventListener("click", () => { if (!String(getSelection())) toggle(); });
  row.addEventListener("keydown", (event) => { if (event.key === "Enter") toggle(); });
  body.append(...around(record.after), row, ...around(record.before));
  return body;
}

// ---- the answer

async function ask(path, parameters, signal) {
  for (let tries = 1; ; tries++) {
    const response = await fetch(`${here(path)}?${new URLSearchParams(parameters)}`, { ...ASKED, signal });
    if (response.ok) return response;
    if (response.status === 401) goToLogin();
    const document = await response.json().catch(() => ({}));
    // The search before this one ends a moment after its connection was closed.
    if (response.status !== 429 || tries === BUSY_TRIES) throw new Refused(response.status, document);
    await new Promise((resolve) => { setTimeout(resolve, BUSY_MS); });
  }
}

async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    yield parts.map((part) => JSON.parse(part));
  }
}

function showProblem(error) {
  const query = $("query").value;
  const place = error.column ? `\n${query}\n${" ".repeat(error.column - 1)}^` : "";
  $("problem").textContent = error instanceof Refused ? error.message + place : `No answer from the box: ${error.message}`;
  $("problem").hidden = false;
}

function showNotes(end) {
  const notes = [...(end.notes ?? []), ...(end.not_searched ?? []).map((each) => `Partition ${each.partition} was not searched: ${each.reason}`)];
  $("notes").replaceChildren(...notes.map((note) => make("li", "", visible(note))));
  $("notes").hidden = notes.length === 0;
}

// The newest is on top.
function show(records) {
  const newest = records.toReversed();
  found.unshift(...newest);
  $("records").tHead.hidden = false;
  $("records").tHead.after(...newest.map(recordBody));
}

// Records that follow are put on top, some at a time, so that a flood does not stop the page. What would leave at once is not shown.
const linesKept = () => Math.min(Number($("limit").value), LIVE_MAX);

function showWaiting() {
  if (!waiting.length || pausedAt) return;
  const table = $("records"), bodies = [], until = performance.now() + LIVE_BUDGET_MS;
  while (bodies.length < waiting.length && (bodies.length % 16 || performance.now() < until)) bodies.push(recordBody(waiting[bodies.length]));
  found.unshift(...waiting.splice(0, bodies.length).reverse());
  found.length = Math.min(found.length, linesKept());
  table.tHead.hidden = false;
  table.tHead.after(...bodies.reverse());
  while (table.tBodies.length > linesKept()) table.tBodies[table.tBodies.length - 1].remove();
}

function showState(text) { $("state").textContent = text; $("download").hidden = !found.length; }

function clear() {
  running?.abort();
  running = new AbortController();
  found = [];
  waiting = [];
  pausedAt = 0;
  for (const body of [...$("records").tBodies]) body.remove();
  $("records").tHead.hidden = true;
  for (const id of ["problem", "notes", "progress", "times-panel", "download"]) $(id).hidden = true;
  return running.signal;
}

async function readMarks(signal) { marks = marksOf(await (await ask("/api/search/check", { query: $("query").value }, signal)).json()); }

async function start() {
  const signal = clear();
  writeAddress();
  showFollow(false);
  const times = chosenTimes(), began = performance.now();
  const wanted = { topic: $("topic").value, query: $("query").value, ...times.asked };
  if (!(times.from < times.to)) { showProblem(new Refused(400, { error: "From has to be before To." })); return; }
  showState("Searching …");
  $("progress").hidden = false;
  $("progress").removeAttribute("value");
  let total = 0, end = null;
  try {
    await readMarks(signal);
    for await (const documents of lines(await ask("/api/search", { ...wanted, limit: $("limit").value, order: "newest", before: $("context").value, after: $("context").value }, signal))) {
      const records = documents.filter((each) => each.record).map((each) => each.record);
      if (records.length) show(records);
      for (const each of documents) {
        if (each.search) total = each.search.bytes;
        if (each.progress && total) $("progress").value = Math.min(each.progress.bytes / (each.progress.of || total), 1);
        if (each.error) throw new Refused(each.error.status, { error: each.error.message });
        if (each.end) end = each.end;
      }
    }
    if (!end) throw new Refused(500, { error: "the search ended before its end; what is shown is not all" });
    const seconds = ((performance.now() - began) / 1000).toFixed(1);
    showState(found.length
      ? `${plural(found.length, "record")}${found.length >= Number($("limit").value) ? ", the newest" : ""} · ${bytesText(end.scanned_bytes)} searched in ${seconds} s${end.skipped_bytes ? `, ${bytesText(end.skipped_bytes)} skipped` : ""}`
      : "No record matches. Search a longer time, another topic, or fewer words.");
    showNotes(end);
    $("progress").hidden = true;
    if (found.length) await countTimes(wanted, times, signal).catch((error) => { if (!signal.aborted) showNotes({ ...end, notes: [...(end.notes ?? []), `Their times were not counted: ${error.message}`] }); });
  } catch (error) {
    if (signal.aborted) return;
    $("progress").hidden = true;
    showState(found.length ? `${plural(found.length, "record")}, and then the search failed` : "Nothing was searched.");
    showProblem(error);
  }
}

// ---- the times of the matches

async function countTimes(wanted, times, signal) {
  const [unit, size] = UNITS.find(([, each]) => (times.to - times.from) / each <= 400) ?? UNITS[UNITS.length - 1];
  const counts = new Map();
  let all = 0;
  for await (const documents of lines(await ask("/api/search", { ...wanted, by: `${unit},severity` }, signal))) {
    for (const { count } of documents) {
      const at = count ? Date.parse(String(count.by[0]).replace(/T(\d\d)Z$/, "T$1:00Z")) : NaN; // V8 takes no hour without minutes
      if (Number.isNaN(at)) continue;
      const [, kind] = severityOf({ severity: count.by[1] });
      const bar = counts.get(at) ?? {};
      bar[kind || "other"] = (bar[kind || "other"] ?? 0) + count.count;
      counts.set(at, bar);
      all += count.count;
    }
  }
  drawTimes(counts, times, size, all);
}

function drawTimes(counts, times, size, all) {
  const first = Math.floor(times.from / size) * size;
  const units = Math.ceil((times.to - first) / size);
  const folded = Math.ceil(units / BARS_MAX), width = folded * size;
  const bars = Array.from({ length: Math.ceil(units / folded) }, () => ({ bad: 0, warn: 0, other: 0 }));
  for (const [at, kinds] of counts) {
    const bar = bars[Math.floor((at - first) / width)];
    if (bar) for (const [kind, count] of Object.entries(kinds)) bar[kind] += count;
  }
  const highest = Math.max(...bars.map((bar) => bar.bad + bar.warn + bar.other), 1);
  $("times").replaceChildren(...bars.map((bar, index) => {
    const made = make("div"), from = first + index * width;
    made.dataset.from = from;
    made.title = `${timeText(from).slice(0, 19)}: ${plural(bar.bad + bar.warn + bar.other, "record")}${bar.bad ? `, ${wholeText(bar.bad)} of err or worse` : ""}`;
    for (const kind of ["bad", "warn", "other"]) {
      const part = make("i", kind);
      part.style.height = `${100 * bar[kind] / highest}%`;
      if (bar[kind]) part.style.minHeight = "2px";
      made.append(part);
    }
    return made;
  }));
  $("times").dataset.width = width;
  $("times-note").replaceChildren(
    make("span", "", timeText(times.from).slice(0, 19)), make("span", "", `${plural(all, "match").replace(/matchs$/, "matches")}, ${durationText(width)} a bar`), make("span", "", timeText(times.to).slice(0, 19)),
  );
  $("times-panel").hidden = false;
}

function chooseBars() {
  let chosen = null;
  const bars = () => [...$("times").children];
  const at = (event) => bars().findIndex((bar) => event.clientX < bar.getBoundingClientRect().right);
  $("times").addEventListener("pointerdown", (event) => { chosen = at(event); $("times").setPointerCapture(event.pointerId); });
  $("times").addEventListener("pointermove", (event) => {
    if (chosen == null || chosen < 0) return;
    const [low, high] = [chosen, at(event)].sort((one, other) => one - other);
    bars().forEach((bar, index) => bar.classList.toggle("chosen", index >= low && index <= high));
  });
  $("times").addEventListener("pointerup", (event) => {
    const all = bars(), last = at(event);
    if (chosen != null && chosen >= 0) {
      const [low, high] = [chosen, last < 0 ? all.length - 1 : last].sort((one, other) => one - other);
      chooseTimes(Number(all[low].dataset.from), Number(all[high].dataset.from) + Number($("times").dataset.width));
      start();
    }
    chosen = null;
  });
}

// ---- follow

const isFollowing = () => $("follow").getAttribute("aria-pressed") === "true";

function showFollow(isOn) {
  $("follow").setAttribute("aria-pressed", String(isOn));
  $("follow").textContent = !isOn ? "Follow" : pausedAt ? "Go on" : "Pause";
  $("stop").hidden = !isOn;
  $("records").classList.toggle("live", isOn);
}

function stopFollowing() {
  running?.abort();
  pausedAt = 0;
  showWaiting();
  showFollow(false);
  showState(`Stopped; ${plural(found.length, "record")} kept.`);
}

async function follow() {
  if (isFollowing()) {
    pausedAt = pausedAt ? 0 : Date.now();
    showFollow(true);
    return;
  }
  const signal = clear();
  writeAddress();
  showFollow(true);
  showState("Later records appear here as they come.");
  const began = Date.now();
  let seen = 0, dropped = 0, shownAt = -LIVE_MS;
  const frame = (at) => {
    if (signal.aborted) return;
    requestAnimationFrame(frame); // first: what follows may fail for one record
    if (at - shownAt < LIVE_MS) return;
    shownAt = at;
    showWaiting();
    if (seen) showState(`${plural(seen, "record")} since ${clockText(new Date(began))} (${ZONE})${pausedAt ? ` · paused, ${wholeText(waiting.length)} wait` : ""}${dropped ? ` · the newest ${wholeText(linesKept())} kept, ${wholeText(dropped)} passed by unseen` : ""}`);
  };
  try {
    await readMarks(signal);
    const wanted = { topic: $("topic").value, query: $("query").value, since: "now", order: "oldest", follow: "true", limit: "1000000" };
    const response = await ask("/api/search", wanted, signal);
    requestAnimationFrame(frame);
    for await (const documents of lines(response)) {
      const records = documents.filter((each) => each.record).map((each) => each.record);
      seen += records.length;
      waiting = waiting.concat(records);
      const most = linesKept();
      if (waiting.length > most) dropped += waiting.splice(0, waiting.length - most).length;
      const failed = documents.find((each) => each.error);
      if (failed) throw new Refused(failed.error.status, { error: failed.error.message });
    }
    throw new Refused(500, { error: "the search that follows has ended; follow again" });
  } catch (error) {
    if (signal.aborted) return;
    showProblem(error);
    showFollow(false);
  }
}

// ---- the page

function download() {
  const link = make("a");
  link.href = URL.createObjectURL(new Blob(found.map((record) => `${JSON.stringify(record)}\n`), { type: "application/x-ndjson" }));
  link.download = `${$("topic").value}.ndjson`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

async function showTopics(isFirst = false) {
  setTimeout(() => { showTopics().catch(() => {}); }, TOPICS_EVERY_MS);
  const { topics } = await (await fetch(here("/api/topics"), ASKED)).json();
  $("topic-names").replaceChildren(...topics.map((topic) => { const option = make("option"); option.value = topic.name; return option; }));
  if (!isFirst || $("topic").value) return;
  const names = topics.map((topic) => topic.name);
  if (names.length) $("topic").value = names.includes("syslog") ? "syslog" : names[0];
  else if (!found.length) showState("This box has no topic yet. Send it a line: logger -n 127.0.0.1 -P 5514 hello");
}

$("form").addEventListener("submit", (event) => { event.preventDefault(); start(); });
$("range").addEventListener("change", () => { if ($("range").value === "fixed" && !$("since").value) { const now = Date.now(); chooseTimes(now - AGE_MS.h, now); } showFixed(); });
$("follow").addEventListener("click", follow);
$("stop").addEventListener("click", stopFollowing);
$("download").addEventListener("click", download);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/INPUT|SELECT/.test(document.activeElement.tagName)) { event.preventDefault(); $("query").focus(); }
});
$("zone").textContent = `(${ZONE})`;
followTheme(() => {});
chooseBars();
// A search is not cheap, and any page can link to this one: an address fills the form in, and its reader starts the search.
if (readAddress()) showState("The address has filled the form in. Press Enter or Search to search.");
showTopics(true).catch(showProblem);
