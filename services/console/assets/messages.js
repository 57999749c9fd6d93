// The records of a partition, page by page, and writing one. What it shows is in its address. Text from the box is put in as text, never as HTML.
"use strict";
const PREVIEW_CHARACTERS = 300;
const FIELDS = ["topic", "partition", "from", "offset", "time", "count", "view"];
let page = null;

// ---- bytes as people read them

function bytesOf(content) {
  if (content.text != null) return new TextEncoder().encode(content.text);
  return Uint8Array.from(atob(content.base64), (character) => character.charCodeAt(0));
}

function hexText(content) {
  const bytes = bytesOf(content), lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const row = [...bytes.subarray(at, at + 16)];
    const numbers = row.map((byte) => pad(byte.toString(16), 2)).join(" ").padEnd(bytes.length > 16 ? 48 : 0);
    lines.push(`${pad(at.toString(16), 6)}  ${numbers} ${row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("")}`);
  }
  return lines.join("\n");
}

function jsonText(content) {
  try {
    const parsed = JSON.parse(content.text);
    return parsed && typeof parsed === "object" ? JSON.stringify(parsed, null, 2) : null;
  } catch { return null; }
}

// A content as the chosen view shows it. Big numbers would be rounded by JSON.parse, so such a text stays as it is.
function shownText(content, isWhole) {
  if (content == null) return isWhole ? "(none)" : "";
  const view = $("view").value;
  if (view === "hex" || content.text == null) return isWhole ? hexText(content) : [...bytesOf(content).subarray(0, 48)].map((byte) => pad(byte.toString(16), 2)).join(" ");
  const json = isWhole && view === "auto" && !/\d{16}/.test(content.text) ? jsonText(content) : null;
  return visible(json ?? content.text);
}

// ---- one record

function wholeOf(record) {
  const row = make("tr", "whole"), cell = make("td"), list = make("dl");
  cell.colSpan = 5;
  const add = (name, text) => list.append(make("dt", "", name), make("span"), make("dd", "", text));
  add("key", shownText(record.key, true));
  for (const [name, content] of record.headers) add(visible(name), shownText(content, true));
  if (record.headers_count > record.headers.length) add("…", `${wholeText(record.headers_count - record.headers.length)} more headers`);
  const isCut = record.value && record.value.size_bytes > bytesOf(record.value).length;
  cell.append(list, make("pre", "", shownText(record.value, true)));
  if (isCut) cell.append(make("p", "", `${bytesText(record.value.size_bytes)} in all; the first are shown.`), button("Show up to 1 MiB", "", () => showWhole(record, row)));
  row.append(cell);
  return row;
}

async function showWhole(record, row) {
  const asked = { topic: page.topic, partition: page.partition, from: "offset", offset: record.offset, count: 1, whole: 1 };
  try {
    const [found] = (await getJson("/api/records", asked)).records;
    if (found?.offset === record.offset) row.replaceWith(wholeOf(found));
    showTrouble(null);
  } catch (error) {
    showTrouble(error);
  }
}

function bodyOf(record) {
  const body = make("tbody"), row = make("tr", "record");
  const value = make("td", "message", record.value == null ? "" : cut(shownText(record.value, false), PREVIEW_CHARACTERS));
  if (record.value == null) value.append(badge("no value", ""));
  row.append(make("td", "number", String(record.offset)), make("td", "", timeText(record.timestamp)), make("td", "short", cut(shownText(record.key, false), 80)), value, make("td", "number", wholeText(record.size_bytes)));
  row.tabIndex = 0;
  row.setAttribute("aria-expanded", "false");
  const toggle = () => {
    const isOpen = body.rows.length > 1;
    if (isOpen) body.deleteRow(1);
    else body.append(wholeOf(record));
    row.setAttribute("aria-expanded", String(!isOpen));
  };
  row.addEventListener("click", () => { if (!String(getSelection())) toggle(); });
  row.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(); } });
  body.append(row);
  return body;
}

// ---- a page of them

function showPage() {
  for (const body of [...$("records").tBodies]) body.remove();
  $("records").tHead.hidden = !page.records.length;
  $("records").append(...page.records.map(bodyOf));
  const { start_offset: start, end_offset: end, first_offset: first, next_offset: next } = page;
  const last = page.records[page.records.length - 1];
  $("state").textContent = page.records.length
    ? `Offsets ${wholeText(page.records[0].offset)} to ${wholeText(last.offset)} of ${wholeText(start)} to ${wholeText(end - 1)}`
    : start === end ? "This partition has no records." : `No records here; there are offsets ${wholeText(start)} to ${wholeText(end - 1)}.`;
  $("previous").disabled = first <= start;
  $("next").disabled = next >= end;
}

function fillPartitions(count) {
  for (const [id, first] of [["partition", null], ["to-partition", "by key"]]) {
    const select = $(id), chosen = select.value, names = Array.from({ length: count }, (unused, number) => String(number));
    if (select.options.length === count + (first ? 1 : 0)) continue;
    select.replaceChildren(...[...(first ? [["", first]] : []), ...names.map((name) => [name, name])].map(([value, text]) => { const option = make("option", "", text); option.value = value; return option; }));
    select.value = chosen;
    if (select.value !== chosen) select.selectedIndex = 0;
  }
}

function showFrom() {
  $("offset-label").hidden = $("from").value !== "offset";
  $("time-label").hidden = $("from").value !== "time";
}

function writeAddress() {
  const state = new URLSearchParams();
  for (const name of FIELDS) if ($(name).value && !(name === "offset" && $("from").value !== "offset") && !(name === "time" && $("from").value !== "time")) state.set(name, $(name).value);
  history.replaceState(null, "", `?${state}`);
}

async function show() {
  showFrom();
  writeAddress();
  const from = $("from").value, topic = $("topic").value.trim();
  $("search").href = `logs#${new URLSearchParams({ topic })}`;
  document.title = `${topic} · Messages · Millrace`;
  $("state").textContent = "Reading …";
  try {
    page = await getJson("/api/records", { topic, partition: $("partition").value, from, count: $("count").value, ...(from === "offset" && { offset: $("offset").value || "0" }), ...(from === "time" && { time: $("time").value }) });
    fillPartitions(page.partitions);
    showTrouble(null);
    showPage();
  } catch (error) {
    $("state").textContent = page ? "What was read before is shown." : "";
    showTrouble(error);
    $("trouble").textContent = problemText(error);
  }
}

function showAt(offset) {
  $("from").value = "offset";
  $("offset").value = String(Math.max(offset, 0));
  show();
}

// ---- writing one

function headersOf(text) {
  return text.split(",").map((part) => part.trim()).filter(Boolean).map((part) => {
    const [name, ...rest] = part.split("=");
    return [name.trim(), rest.length ? rest.join("=").trim() : null];
  });
}

async function produce(event) {
  event.preventDefault();
  const key = $("key").value, partition = $("to-partition").value;
  try {
    const written = await postJson("/api/records/produce", { topic: $("topic").value.trim(), partition, key: key === "" ? null : key, value: $("tombstone").checked ? null : $("value").value, headers: headersOf($("headers").value) });
    $("produced").textContent = `Written to partition ${written.partition} at offset ${wholeText(written.offset)}.`;
    $("partition").value = String(written.partition);
    showAt(Math.max(written.offset - Number($("count").value) + 1, 0));
  } catch (error) {
    $("produced").textContent = `Not written: ${problemText(error)}`;
  }
}

async function showTopics() {
  const { topics } = await getJson("/api/topics", { internal: "1" });
  $("topic-names").replaceChildren(...topics.map((topic) => { const option = make("option"); option.value = topic.name; return option; }));
  const known = topics.find((topic) => topic.name === $("topic").value);
  if (known) fillPartitions(known.partitions);
  if (!$("topic").value && !topics.length) $("state").textContent = "This box has no topic yet.";
}

$("form").addEventListener("submit", (event) => { event.preventDefault(); show(); });
$("from").addEventListener("change", () => { showFrom(); if (["newest", "earliest"].includes($("from").value) && $("topic").value) show(); });
$("partition").addEventListener("change", () => { if ($("topic").value) show(); });
$("view").addEventListener("change", () => { writeAddress(); if (page) showPage(); });
$("topic").addEventListener("change", () => { $("partition").selectedIndex = 0; if ($("topic").value) show(); });
$("previous").addEventListener("click", () => showAt(page.first_offset - Number($("count").value)));
$("next").addEventListener("click", () => showAt(page.next_offset));
$("produce").addEventListener("submit", produce);
$("zone").textContent = `(${ZONE})`;
followTheme(() => {});
for (const name of FIELDS) {
  if (name === "partition" && /^\d+$/.test(parameter(name))) fillPartitions(Math.min(Number(parameter(name)) + 1, 10000));
  if (parameter(name)) $(name).value = parameter(name);
}
for (const name of ["from", "count", "view", "partition"]) if (!$(name).value) $(name).selectedIndex = 0;
showFrom();
showRights().catch(showTrouble);
showTopics().catch(showTrouble).then(() => { if ($("topic").value) show(); });
