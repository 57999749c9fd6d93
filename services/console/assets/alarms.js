// The alarms: those that last, those that ended, and what to do for each. Text from the box is put in as text, never as HTML.
"use strict";
const EVERY_MS = 4000;
const KINDS = { critical: "bad", warning: "warn" };
let now = null;

async function look() {
  now = await getJson("/api/alarms");
  showPresent();
  showPast();
  showPush();
  showRunbook();
  const problems = [...now.problems, ...(now.hidden ? [now.hidden] : [])];
  $("problems").hidden = !problems.length;
  $("problems").textContent = problems.join(" · ");
}

const what = (alarm) => [alarm.words, make("span", "under", alarm.meaning)];

function toRunbook(alarm) {
  const made = make("a", "", alarm.name);
  made.href = `#${alarm.name}`;
  made.addEventListener("click", () => openEntry(alarm.name));
  return made;
}

function showPresent() {
  fill($("present"), [["", ""], ["what", "words"], ["alarm", ""], ["began", "number soft"], ["lasts", "number"]], now.present.map((alarm) => [
    badge(alarm.severity, KINDS[alarm.severity] ?? ""), what(alarm), toRunbook(alarm), timeText(alarm.began_ms).slice(0, 19), durationText(now.now_ms - alarm.began_ms)]), "Nothing is the matter.");
  const left = now.present_count - now.present.length;
  $("present-note").textContent = plural(now.present_count, "alarm") + (left > 0 ? `, ${wholeText(left)} not shown` : "") + `; times are of ${ZONE}`;
}

function showPast() {
  const wanted = $("only").value.trim().toLowerCase();
  const shown = now.past.filter((alarm) => `${alarm.name} ${alarm.severity} ${alarm.words}`.toLowerCase().includes(wanted));
  fill($("past"), [["", ""], ["what", "words"], ["alarm", ""], ["began", "number soft"], ["ended", "number soft"], ["lasted", "number"]], shown.map((alarm) => [
    badge(alarm.severity, ""), what(alarm), toRunbook(alarm), timeText(alarm.began_ms).slice(0, 19), timeText(alarm.ended_ms).slice(0, 19), durationText(alarm.ended_ms - alarm.began_ms),
  ]), now.past.length ? "No past alarm has this text." : "No alarm has ended yet.");
  $("past-note").textContent = `the last ${wholeText(now.past_count)}; kept over restarts of the console`;
}

function showPush() {
  const { target, problem, waiting, sent } = now.push;
  $("push").hidden = target == null;
  $("push").className = problem ? "problem" : "";
  const said = !target ? "Sent nowhere: `alerts.url` is empty." : problem ? `${problem}; ${plural(waiting, "alarm")} waiting.` : `Sent to ${target}, ${plural(sent, "message")} since the box started.`;
  $("push").replaceChildren(...prose(said));
}

function entry(alarm) {
  const made = make("details"), head = make("summary", "", `${alarm.name} `);
  made.id = alarm.name;
  head.append(badge(alarm.is_firing ? `${alarm.severity}, now` : alarm.severity, alarm.is_firing ? KINDS[alarm.severity] ?? "" : ""));
  const texts = [["Means", alarm.meaning], ["Check", alarm.check], ["Act", alarm.act], ...(alarm.is_checked ? [] : [["Note", "only Prometheus can check it"]])];
  made.append(head, ...texts.map(([name, text]) => { const part = make("p"); part.append(make("b", "", `${name}: `), ...prose(text)); return part; }));
  return made;
}

function showRunbook() {
  const open = new Set([...$("runbook").querySelectorAll("details[open]")].map((each) => each.id));
  const state = now.alarms.map((alarm) => `${alarm.name}${alarm.is_firing}`).join();
  if ($("runbook").dataset.state === state) return;
  $("runbook").dataset.state = state;
  const first = !$("runbook").children.length;
  $("runbook").replaceChildren(...now.alarms.map(entry));
  for (const name of open) $(name).open = true;
  if (first && location.hash) openEntry(location.hash.slice(1));
}

function openEntry(name) {
  const found = $(name);
  if (found?.tagName !== "DETAILS") return;
  found.open = true;
  found.scrollIntoView();
  found.firstChild.focus();
}

$("only").addEventListener("input", () => { if (now) showPast(); });
addEventListener("hashchange", () => openEntry(location.hash.slice(1)));
followTheme(() => {});
keepLooking(look, EVERY_MS);
