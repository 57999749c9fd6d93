// The consumer groups: a list, or one of them (?group=…). Text from the box is put in as text, never as HTML.
"use strict";
const EVERY_MS = 4000;
const MINUTES_MS = 300000;
const STATES = { stable: "good", empty: "", dead: "bad" };
const chosen = parameter("group");
let one = null;
let lookAgain = () => {};

const stateBadge = (state) => badge(state.toLowerCase() || NOTHING, STATES[state.toLowerCase()] ?? "warn");

// ---- the list

async function lookAtList() {
  const { groups, count } = await getJson("/api/groups", { contains: $("only").value.trim() });
  if ($("order").value === "lag") groups.sort((first, second) => (second.lag ?? -1) - (first.lag ?? -1));
  const most = Math.max(...groups.map((group) => group.lag ?? 0), 1);
  fill($("groups"), [["group", "name"], ["state", ""], ["records behind", "number"], ["protocol", "soft"], ["coordinator", "number soft"]], groups.map((group) => [
    link(group.group_id, "/groups", { group: group.group_id }), stateBadge(group.state), group.lag == null ? NOTHING : metered(group.lag / most, group.lag > 1e6 ? "warn" : "", wholeText(group.lag)),
    group.group_type || NOTHING, `box ${group.coordinator}`]), $("only").value ? "No group is called so." : "No groups yet.");
  $("count").textContent = plural(count, "group") + (count > groups.length ? `, ${wholeText(groups.length)} shown: type a part of the name` : "");
}

// ---- one group

async function lookAtOne() {
  one = await getJson("/api/group", { group: chosen });
  $("title").replaceChildren(chosen, " ", stateBadge(one.state), make("span", "", `${one.lag == null ? "lag not known" : `${wholeText(one.lag)} records behind`}, ${one.protocol} protocol${one.assignor ? `, assignor ${one.assignor}` : ""}`));
  showMembers();
  showPartitions();
  drawLag();
  for (const id of ["one", "reading", "behind"]) $(id).hidden = false;
}

function rangesText(partitions) {
  const topics = new Map();
  for (const [topic, number] of partitions) topics.set(topic, [...(topics.get(topic) ?? []), number]);
  return [...topics].map(([topic, numbers]) => `${topic}: ${numbers.join(", ")}`).join(" · ");
}

function showMembers() {
  fill($("members"), [["client", "name"], ["host", ""], ["reads", "words"], ["member", "words soft"]], one.members.map((member) => [
    member.client_id, member.client_host, rangesText(member.partitions) || NOTHING, [member.member_id, ...(member.group_instance_id ? [make("span", "under", `static: ${member.group_instance_id}`)] : [])]]), "No members: the group reads nothing now.");
  $("members-note").textContent = plural(one.members_count, "member") + (one.members_count > one.members.length ? `, ${one.members.length} shown` : "");
}

function showPartitions() {
  const most = Math.max(...one.partitions.map((part) => part.lag ?? 0), 1);
  fill($("partitions"), [["topic", "name"], ["partition", "number"], ["committed", "number"], ["end", "number"], ["records behind", "number"], ["read by", "soft"]], one.partitions.map((part) => [
    link(part.topic, "/topics", { topic: part.topic }), link(String(part.partition), "/messages", { topic: part.topic, partition: part.partition, ...(part.committed_offset != null && { from: "offset", offset: part.committed_offset }) }),
    wholeText(part.committed_offset), part.end_offset == null ? badge("not known", "warn") : wholeText(part.end_offset), part.lag == null ? NOTHING : metered(part.lag / most, "", wholeText(part.lag)), part.host ?? NOTHING]), "The group has committed nothing.");
  $("partitions-note").textContent = plural(one.partitions_count, "partition") + (one.partitions_count > one.partitions.length ? `, ${one.partitions.length} shown` : "");
}

function drawLag() {
  const now = one.now_ms, points = one.lag == null ? one.history : [...one.history, [now, one.lag]], most = Math.max(...points.map(([, lag]) => lag), 1);
  const span = Math.max(now - (points[0]?.[0] ?? now), MINUTES_MS);
  $("lag-line").setAttribute("points", points.map(([at, lag]) => `${600 * (1 - (now - at) / span)},${86 - 80 * lag / most}`).join(" "));
  const highest = Math.max(...points.map(([, lag]) => lag), 0);
  $("lag").setAttribute("aria-label", points.length ? `between ${wholeText(Math.min(...points.map(([, lag]) => lag)))} and ${wholeText(highest)} records behind` : "nothing measured yet");
  $("lag-note").textContent = points.length
    ? `At most ${wholeText(highest)}, since ${timeText(points[0][0]).slice(0, 19)} (${ZONE}). Measured while this page is open; the console keeps an hour in memory.`
    : "Measured while this page is open.";
}

// ---- what changes it

function resetOffsets() {
  const topics = [...new Set(one.partitions.map((part) => part.topic))];
  const asked = ({ to, place, topic, partition }) => ({ group: chosen, to, topic, partition, ...(to === "time" ? { time: place.trim() } : ["offset", "shift"].includes(to) ? { offset: place.trim() } : {}) });
  openDialog({
    title: `Where ${chosen} goes on`, action: "Reset the offsets", isDanger: true, text: "The group must have no members: they would commit over it.",
    fields: [{ name: "to", label: "To", choices: [["earliest", "the earliest record"], ["latest", "the end"], ["time", "a time"], ["offset", "an offset"], ["shift", "so many records on (or -back)"]] },
      { name: "place", label: "Time, offset or number", hint: "an age such as 2h, a time such as 2026-11-21T14:00, an offset, or a number of records" },
      { name: "topic", label: "Topic", value: "", placeholder: topics.join(", "), hint: "empty: all that the group has offsets of" }, { name: "partition", label: "Partition", type: "number", hint: "empty: all" }],
    preview: async (given) => {
      const { partitions, partitions_count: count } = await postJson("/api/group/reset", asked(given)), table = make("table");
      fill(table, [["topic", ""], ["partition", "number"], ["now", "number"], ["would be", "number"], ["to read", "number"]], partitions.map((part) => [part.topic, String(part.partition), wholeText(part.committed), wholeText(part.target), wholeText(part.end - part.target)]), "nothing");
      return [make("p", "", `${plural(count, "offset")} would be set.`), table];
    },
    run: async (given) => { await postJson("/api/group/reset", { ...asked(given), execute: true }); lookAgain(); },
  });
}

function deleteGroup() {
  openDialog({
    title: `Delete ${chosen}`, text: "The group and its offsets go, for good. It must have no members.", action: "Delete the group", isDanger: true,
    fields: [{ name: "confirm", label: `Type ${chosen} to confirm`, required: true }],
    run: async ({ confirm }) => { await postJson("/api/group/delete", { group: chosen, confirm }); location.href = "groups"; },
  });
}

followTheme(() => {});
if (chosen) {
  document.title = `${chosen} · Groups · Millrace`;
  $("reset").addEventListener("click", resetOffsets);
  $("delete").addEventListener("click", deleteGroup);
} else {
  $("list").hidden = false;
  for (const id of ["only", "order"]) $(id).addEventListener("input", () => lookAgain());
}
showRights().catch(showTrouble);
lookAgain = keepLooking(chosen ? lookAtOne : lookAtList, EVERY_MS);
