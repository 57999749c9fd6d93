// The page of senders: asks /api/senders every two seconds. Text from the box is put in as text, never as HTML.
"use strict";
const EVERY_MS = 2000;
const ANSWER_MS_MAX = 5000;

let before = null; // the answer before this one, for rates
let now = null;

function reasonsText(reasons) {
  return Object.entries(reasons).sort((one, other) => other[1] - one[1]).map(([reason, count]) => `${wholeText(count)} ${reason.replaceAll("_", " ")}`).join(", ");
}

function rate(received, earlier) {
  if (!before || earlier == null || now.now_ms <= before.now_ms) return NOTHING;
  return `${countText(Math.max(received - earlier, 0) * 1000 / (now.now_ms - before.now_ms))}/s`;
}

function showListeners() {
  const earlier = new Map((before?.listeners ?? []).map((each) => [each.name, each.received]));
  const columns = [["listener", "name"], ["protocol", ""], ["address", "soft"], ["received", "number"], ["rate", "number"], ["stored", "number"], ["repeated", "number"],
    ["lost", "number"], ["refused", "number"], ["in flight", "number"], ["why lost or refused", "words"]];
  fill($("listeners"), columns, now.listeners.map((each) => {
    const lost = Object.values(each.counted).reduce((sum, count) => sum + count, 0), refused = Object.values(each.refused).reduce((sum, count) => sum + count, 0);
    const why = [reasonsText(each.counted), reasonsText(each.refused), each.kernel_drops ? `${wholeText(each.kernel_drops)} dropped by the kernel` : "",
      each.unparsed ? `${wholeText(each.unparsed)} stored unparsed` : ""].filter((text) => text).join(", ");
    return [each.name, each.protocol, each.place, wholeText(each.received), rate(each.received, earlier.get(each.name)), wholeText(each.stored), wholeText(each.duplicate),
      lost ? badge(wholeText(lost), "bad") : "0", refused ? badge(wholeText(refused), "warn") : "0", wholeText(Math.max(each.in_flight, 0)), why];
  }), "no listeners");
  $("total").textContent = `${wholeText(now.received)} received, ${plural(now.connections, "connection")}`;
}

function showSenders() {
  const wanted = $("only").value.trim().toLowerCase();
  const earlier = new Map((before?.senders ?? []).map((each) => [each.host, each.received]));
  const words = (each) => [each.host, ...each.listeners, each.is_silent ? "silent" : "", each.refused ? "refused" : ""].join(" ").toLowerCase();
  const shown = now.senders.filter((each) => words(each).includes(wanted));
  const columns = [["sender", "name"], ["state", ""], ["last heard", "number"], ["received", "number"], ["rate", "number"], ["stored", "number"], ["repeated", "number"],
    ["unparsed", "number"], ["not stored", "number"], ["why", "words"], ["to", "soft"]];
  fill($("senders"), columns, shown.map((each) => [
    each.host, each.is_silent ? badge("silent", "warn") : badge("heard", "good"), `${durationText(each.silent_ms)} ago`, wholeText(each.received),
    rate(each.received, earlier.get(each.host)), wholeText(each.stored), wholeText(each.duplicate), wholeText(each.malformed),
    each.refused ? badge(wholeText(each.refused), "bad") : "0", reasonsText(each.reasons), each.listeners.join(", "),
  ]), now.senders.length ? "No sender is called so." : "Nothing was sent yet. Try: logger -n 127.0.0.1 -P 5514 hello");
  const left = now.senders_count - now.senders.length;
  $("count").textContent = plural(now.senders_count, "sender") + (now.silent_count ? `, ${wholeText(now.silent_count)} silent for ${durationText(now.silent_limit_ms)} or longer` : "")
    + (left > 0 ? `; silent and busy ones first, ${wholeText(left)} not shown` : "");
}

async function look() {
  try {
    const answer = await fetch(here("/api/senders"), { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS_MAX) });
    const document = await answer.json();
    if (answer.status === 401) goToLogin();
    if (!answer.ok) throw new Error(document.error);
    if (now?.now_ms !== document.now_ms) { before = now; now = document; }
    $("trouble").hidden = true;
    showListeners();
    showSenders();
  } catch (error) {
    $("trouble").textContent = `No answer from the box: ${error.message}`;
    $("trouble").hidden = false;
  }
  setTimeout(look, EVERY_MS);
}

$("only").addEventListener("input", () => { if (now) showSenders(); });
followTheme(() => {});
look();
