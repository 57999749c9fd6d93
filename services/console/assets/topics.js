// The topics: a list, or one of them (?topic=…), with what changes it. Text from the box is put in as text, never as HTML.
"use strict";
const LIST_MS = 2000;
const ONE_MS = 5000;
const chosen = parameter("topic");
let lookAgain = () => {};

// ---- the list

async function lookAtList() {
  const { topics, count, boxes, hidden } = await getJson("/api/topics", { contains: $("only").value.trim(), ...($("internal").checked && { internal: "1" }) });
  const order = $("order").value;
  if (order !== "name") topics.sort((one, other) => other[order] - one[order]);
  const columns = [["topic", "name"], ["", ""], ["partitions", "number"], ["replicas", "number"], ["records", "number"], ["bytes on disk", "number"],
    ["records in/s", "number"], ["in", "number"], ["out", "number"]];
  fill($("topics"), columns, topics.map((topic) => {
    const badges = [];
    if (topic.leaderless) badges.push(badge(`${topic.leaderless} without leader`, "bad"));
    else if (topic.not_served) badges.push(badge(`${topic.not_served} not served`, "bad"));
    if (topic.under_replicated) badges.push(badge(`${topic.under_replicated} under-replicated`, "warn"));
    if (topic.is_internal) badges.push(badge("internal", ""));
    return [link(topic.name, "/topics", { topic: topic.name }), badges, wholeText(topic.partitions), wholeText(topic.replicas), wholeText(topic.records),
      bytesText(topic.size_bytes), countText(topic.records_per_s), rateText(topic.received_bytes_per_s), rateText(topic.sent_bytes_per_s)];
  }), $("only").value ? "No topic is called so." : "No topics yet.");
  $("count").textContent = plural(count, "topic") + (count > topics.length ? `, ${wholeText(topics.length)} shown: type a part of the name` : "");
  $("list-note").textContent = hidden ?? (boxes > 1 ? "Records, bytes and rates are of the replicas on this box." : "");
}

function createTopic() {
  openDialog({
    title: "Create a topic", action: "Create",
    fields: [{ name: "topic", label: "Name", required: true, hint: "letters, digits, . _ -" }, { name: "partitions", label: "Partitions", type: "number", hint: "empty: as the box is set" },
      { name: "replicas", label: "Replicas", type: "number", hint: "empty: as the box is set" }, { name: "settings", label: "Settings", type: "area", placeholder: "retention.ms=86400000", hint: "one a line" }],
    run: async ({ topic, partitions, replicas, settings }) => {
      const lines = settings.split("\n").map((line) => line.trim()).filter(Boolean);
      if (lines.some((line) => !line.includes("="))) throw new Refused(400, { error: "a setting is NAME=VALUE" });
      const pairs = lines.map((line) => [line.slice(0, line.indexOf("=")).trim(), line.slice(line.indexOf("=") + 1).trim()]);
      await postJson("/api/topic/create", { topic, partitions, replication_factor: replicas, settings: Object.fromEntries(pairs) });
      location.href = `topics?${new URLSearchParams({ topic })}`;
    },
  });
}

// ---- one topic

let one = null;

async function lookAtOne() {
  one = await getJson("/api/topic", { topic: chosen });
  showPartitions();
  showSettings();
  for (const id of ["one", "configured"]) $(id).hidden = false;
  $("delete").disabled = one.is_internal;
}

function showPartitions() {
  const isIn = (part, replica) => part.isr.includes(replica);
  const columns = [["partition", "number"], ["leader", "number"], ["replicas in sync", ""], ["start offset", "number"], ["end offset", "number"], ["records", "number"], ["bytes", "number"], ["on", "soft"]];
  fill($("partitions"), columns, one.partitions.map((part) => {
    const behind = part.replicas.filter((replica) => !isIn(part, replica));
    const isKnown = part.start_offset != null && part.end_offset != null;
    return [link(String(part.partition), "/messages", { topic: chosen, partition: part.partition }),
      part.leader < 0 ? badge("none", "bad") : String(part.leader),
      [part.replicas.filter((replica) => isIn(part, replica)).join(", ") || NOTHING, ...(behind.length ? [" ", badge(`behind: ${behind.join(", ")}`, "warn")] : [])],
      wholeText(part.start_offset), wholeText(part.end_offset), isKnown ? wholeText(part.end_offset - part.start_offset) : badge("not served", "bad"), bytesText(part.size_bytes),
      Object.entries(part.disks).map(([broker, path]) => `${part.replicas.length > 1 ? `box ${broker}: ` : ""}${path}`).join(" · ")];
  }), "no partitions");
  const size = one.partitions.reduce((sum, part) => sum + (part.size_bytes ?? 0), 0);
  $("title").replaceChildren(one.topic, make("span", "", `${plural(one.partitions.length, "partition")}, ${bytesText(size)}${one.is_internal ? ", internal" : ""}`));
  $("one-note").textContent = `Topic id ${one.id}. ` + (one.silent_boxes.length ? `No answer from box ${one.silent_boxes.join(", ")}: its sizes are not shown.` : "");
}

function showSettings() {
  const wanted = $("setting").value.trim().toLowerCase();
  const shown = one.settings.filter((each) => each.name.includes(wanted) || each.source === wanted);
  fill($("settings"), [["setting", "words name"], ["value", "words"], ["from", ""], ["", ""]], shown.map((each) => {
    const change = button("Change", "change admin", () => alterSetting(settingOf(each.name))), unset = button("Default", "change admin", () => unsetSetting(settingOf(each.name)));
    change.setAttribute("aria-label", `Change ${each.name}`);
    unset.setAttribute("aria-label", `${each.name} back to its default`);
    const meaning = meaningOf(each.name, each.value);
    return [[each.name, make("span", "under", each.documentation)], [each.value === "" ? NOTHING : each.value ?? "(hidden)", ...(meaning ? [make("span", "under", meaning)] : [])],
      badge(each.source, each.source === "topic" ? "good" : ""), each.is_fixed ? [] : each.source === "topic" ? [change, " ", unset] : [change]];
  }), one.settings_refused ? `Not shown: ${one.settings_refused}` : "No setting is called so.");
  $("settings-note").textContent = `${wholeText(one.settings.filter((each) => each.source === "topic").length)} set on the topic`;
}

const settingOf = (name) => one.settings.find((each) => each.name === name);
const changed = async (path, body) => { await postJson(path, { topic: chosen, ...body }); lookAgain(); };

function alterSetting({ name, value, documentation }) {
  openDialog({ title: name, text: documentation, action: "Set", fields: [{ name: "value", label: "Value", value }], run: (given) => changed("/api/topic/alter", { set: { [name]: given.value.trim() } }) });
}

function unsetSetting({ name, value }) {
  openDialog({ title: `${name} back to its default`, text: `It is ${value} on this topic.`, action: "Use the default", run: () => changed("/api/topic/alter", { unset: [name] }) });
}

function addPartitions() {
  const count = one.partitions.length;
  openDialog({
    title: "Add partitions", text: "Records stay where they are; keys may go to other partitions from now on. Partitions cannot be taken away again.", action: "Add",
    fields: [{ name: "partitions", label: `Partitions in all (now ${count})`, type: "number", value: count + 1, required: true }], run: (given) => changed("/api/topic/alter", given),
  });
}

function trimmed({ trims, records }) {
  const table = make("table");
  fill(table, [["partition", "number"], ["begins at", "number"], ["would begin at", "number"], ["records that go", "number"], ["that stay", "number"]], trims.map((each) => [
    String(each.partition), wholeText(each.start), wholeText(each.new_start), wholeText(each.new_start - each.start), wholeText(each.end - each.new_start)]), "no partitions");
  return [make("p", "", `${plural(records, "record")} would go, for good.`), table];
}

function trimTopic() {
  let planned = null; // what the preview showed: of an age more would go now
  const asked = ({ partition, before }) => ({ topic: chosen, partition, ...(/^\d{1,11}$/.test(before.trim()) ? { offset: before.trim() } : { time: before.trim() }) });
  openDialog({
    title: "Delete the oldest records", action: "Delete the records", isDanger: true,
    fields: [{ name: "before", label: "Before", required: true, placeholder: "7d", hint: "an age such as 12h or 7d, a time such as 2026-11-21T10:00, or an offset" },
      { name: "partition", label: "Partition", choices: [["", "all"], ...one.partitions.map((part) => [String(part.partition), String(part.partition)])] }],
    preview: async (given) => {
      const plan = await postJson("/api/topic/trim", asked(given));
      planned = { ...asked(given), ...(plan.time != null && { time: String(plan.time) }) };
      return trimmed(plan);
    },
    run: () => changed("/api/topic/trim", { ...planned, execute: true }),
  });
}

function deleteTopic() {
  openDialog({
    title: `Delete ${chosen}`, text: "The topic and all its records go, for good.", action: "Delete the topic", isDanger: true,
    fields: [{ name: "confirm", label: `Type ${chosen} to confirm`, required: true }],
    run: async ({ confirm }) => { await postJson("/api/topic/delete", { topic: chosen, confirm }); location.href = "topics"; },
  });
}

followTheme(() => {});
if (chosen) {
  document.title = `${chosen} · Topics · Millrace`;
  $("messages").href = `messages?${new URLSearchParams({ topic: chosen })}`;
  $("search").href = `logs#${new URLSearchParams({ topic: chosen })}`;
  for (const [id, act] of [["grow", addPartitions], ["trim", trimTopic], ["delete", deleteTopic]]) $(id).addEventListener("click", act);
  $("setting").addEventListener("input", () => { if (one) showSettings(); });
} else {
  $("list").hidden = false;
  for (const id of ["only", "order", "internal"]) $(id).addEventListener("input", () => lookAgain());
  $("create").addEventListener("click", createTopic);
}
showRights().catch(showTrouble);
lookAgain = keepLooking(chosen ? lookAtOne : lookAtList, chosen ? ONE_MS : LIST_MS);
