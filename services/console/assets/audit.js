// The last audit events. Names in them are what clients sent: they are put in as text, never as HTML.
"use strict";
const EVERY_MS = 5000;

async function look() {
  const { exists, events, count, scanned, kinds, missing } = await getJson("/api/audit", { contains: $("only").value.trim(), event: $("kind").value });
  const known = [...$("kind").options].map((option) => option.value);
  for (const kind of kinds.filter((each) => !known.includes(each))) { const option = make("option", "", kind.replace(/^audit\./, "")); option.value = kind; $("kind").append(option); }
  fill($("events"), [["time", "number soft"], ["what", "name"], ["who", "words"], ["from", "words soft"], ["resource", "words"], ["outcome", ""], ["details", "words soft"]], events.map((event) => [
    timeText(event.time_ms).slice(0, 19), [visible(event.event.replace(/^audit\./, "") || "unreadable"), ...(event.times > 1 ? [make("span", "under", `${wholeText(event.times)} times`)] : [])],
    visible(cut(event.principal, 200)), visible(cut([event.client, event.listener].filter(Boolean).join(" · "), 200)), visible(cut(event.resource, 300)),
    badge(visible(cut(event.outcome, 80)) || NOTHING, ["done", "NONE"].includes(event.outcome) ? "good" : "warn"), visible(cut(detailsText(event.details), 1000))]),
  !exists ? "This box keeps no audit log: it begins with an authorizer (authorizer.class.name)." : "No such event.");
  $("audit-note").textContent = exists ? `${plural(count, "event")} of the last ${wholeText(scanned)}` + (count > events.length ? `, ${wholeText(events.length)} shown` : "")
    + (missing.length ? `; ${plural(missing.length, "partition")} without leader` : "") + `; times are of ${ZONE}` : "";
}

const detailsText = (details) => (typeof details === "string" ? details : Object.entries(details).map(([name, value]) => `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", "));

followTheme(() => {});
const lookAgain = keepLooking(look, EVERY_MS);
for (const id of ["only", "kind"]) $(id).addEventListener("input", () => lookAgain());
