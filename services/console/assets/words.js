// Figures as people read them. Nothing here knows the page.
"use strict";
const NOTHING = "–";
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

function bytesParts(value) {
  if (value == null) return [NOTHING, ""];
  let size = value, unit = 0;
  while (size >= 1024 && unit < BYTE_UNITS.length - 1) { size /= 1024; unit++; }
  return [unit === 0 || size >= 100 ? size.toFixed(0) : size.toFixed(1), BYTE_UNITS[unit]];
}
const bytesText = (value) => bytesParts(value).join(" ").trim();
const rateText = (value) => (value == null ? NOTHING : bytesText(value) + "/s");

// 1234567 → 1.23 M; whole numbers below ten thousand.
function countParts(value) {
  if (value == null) return [NOTHING, ""];
  if (value < 10 && value % 1) return [value.toFixed(1), ""];
  if (value < 10000) return [Math.round(value).toLocaleString("en"), ""];
  for (const [unit, size] of [["k", 1e3], ["M", 1e6], ["G", 1e9], ["T", 1e12]]) {
    const shown = value / size;
    if (shown < 999.5 || unit === "T") return [String(parseFloat(shown.toFixed(shown < 10 ? 2 : shown < 100 ? 1 : 0))), unit];
  }
}
const countText = (value) => countParts(value).join(" ").trim();
const wholeText = (value) => (value == null ? NOTHING : Math.round(value).toLocaleString("en"));

function microsParts(value) {
  if (value == null) return [NOTHING, ""];
  if (value < 1000) return [value.toFixed(0), "µs"];
  if (value < 1e6) return [(value / 1e3).toFixed(value < 1e4 ? 1 : 0), "ms"];
  return [(value / 1e6).toFixed(1), "s"];
}
const microsText = (value) => microsParts(value).join(" ").trim();

// The two largest units.
function durationText(milliseconds) {
  if (milliseconds == null) return NOTHING;
  let left = Math.max(Math.floor(milliseconds / 1000), 0);
  const parts = [];
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]]) {
    const count = Math.floor(left / length);
    left %= length;
    if (count || parts.length || unit === "s") parts.push(count + unit);
  }
  return parts.slice(0, 2).filter((part, index) => index === 0 || !part.startsWith("0")).join(" ");
}
const percentText = (value) => (value == null ? NOTHING : (value < 10 ? value.toFixed(1) : value.toFixed(0)) + " %");
const plural = (count, noun) => `${wholeText(count)} ${noun}${count === 1 ? "" : "s"}`;

// ---- times, in the zone that was chosen, or this machine's; `ZONE` stands beside them

const OWN_ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;
const ZONE = [localStorage.getItem("zone"), OWN_ZONE].find(isZone) ?? "UTC";
const IN_ZONE = new Intl.DateTimeFormat("en", { timeZone: ZONE, hourCycle: "h23", year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" });
const pad = (number, digits = 2) => String(number).padStart(digits, "0");
const partsOf = (date) => Object.fromEntries(IN_ZONE.formatToParts(date).map(({ type, value }) => [type, value]));
function dayText(date) { const { year, month, day } = partsOf(date); return `${year}-${month}-${day}`; }
function clockText(date) { const { hour, minute, second } = partsOf(date); return `${hour}:${minute}:${second}`; }

function isZone(name) {
  try { return Boolean(name && new Intl.DateTimeFormat("en", { timeZone: name })); } catch { return false; }
}

// The moment of a text as 2026-11-21T14:00:00 in the zone; NaN if it is none. Where clocks go back an hour, the second time.
function momentOf(text) {
  const asUtc = Date.parse(`${text}Z`);
  if (Number.isNaN(asUtc)) return NaN;
  const ahead = (moment) => Date.parse(`${dayText(new Date(moment))}T${clockText(new Date(moment))}Z`) - Math.floor(moment / 1000) * 1000;
  return asUtc - ahead(asUtc - ahead(asUtc));
}

function timeText(milliseconds) {
  const date = new Date(milliseconds);
  return Number.isNaN(date.getTime()) ? String(milliseconds) : `${dayText(date)} ${clockText(date)}.${pad(date.getMilliseconds(), 3)}`;
}

// ---- text that a stranger wrote

// Control characters and those that turn the direction of text are shown as their numbers.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/gu;
const visible = (text) => text.replace(HIDDEN, (character) => `\\u${pad(character.codePointAt(0).toString(16), 4)}`);
const cut = (text, most) => (text.length > most ? `${text.slice(0, most)} … (${wholeText(text.length)} characters)` : text);

// What a number of a setting means: 604800000 of retention.ms is 7d.
function meaningOf(name, value) {
  if (!/^\d+$/.test(value ?? "") || value.length > 15) return "";
  if (/\.ms(\.|$)/.test(name)) return Number(value) >= 1000 ? durationText(Number(value)) : "";
  return /\.bytes(\.|$)/.test(name) && Number(value) >= 1024 ? bytesText(Number(value)) : "";
}
