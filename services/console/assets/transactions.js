// Transactions and the producers of partitions. Text from the box is put in as text, never as HTML.
"use strict";
const EVERY_MS = 4000;
const STATES = { Ongoing: "good", Empty: "", CompleteCommit: "", CompleteAbort: "", Dead: "" };
let lookAgain = () => {};

async function look() {
  const { transactions, count, now_ms: now } = await getJson("/api/transactions", { contains: $("only").value.trim(), ...($("open").checked && { open: "1" }) });
  const columns = [["transactional id", "name"], ["state", ""], ["open for", "number"], ["producer", "number"], ["epoch", "number"], ["time-out", "number"], ["partitions", "words"], ["coordinator", "number soft"], ["", ""]];
  fill($("transactions"), columns, transactions.map((each) => [
    visible(cut(each.transactional_id, 200)), [badge(each.state, STATES[each.state] ?? "warn"), ...(each.is_late ? [" ", badge("over its time-out", "bad")] : [])],
    each.start_ms == null ? NOTHING : durationText(now - each.start_ms), String(each.producer_id), String(each.producer_epoch), durationText(each.timeout_ms),
    each.partitions.join(", ") + (each.partitions_count > each.partitions.length ? ` and ${wholeText(each.partitions_count - each.partitions.length)} more` : "") || NOTHING,
    `box ${each.coordinator}`, each.is_open ? named("Abort", `Abort ${each.transactional_id}`, () => abort(each.transactional_id)) : ""]),
  $("only").value || $("open").checked ? "No such transaction." : "No transactional id yet.");
  $("count").textContent = plural(count, "transactional id") + (count > transactions.length ? `, ${wholeText(transactions.length)} shown: type a part of the name` : "");
}

function named(text, name, onClick) {
  const made = button(text, "change danger", onClick);
  made.setAttribute("aria-label", name);
  return made;
}

async function showProducers() {
  const topic = $("topic").value.trim(), minutes = $("minutes").value;
  $("producers-note").textContent = "asking …";
  try {
    const found = await getJson("/api/producers", { topic, minutes });
    const columns = [["partition", "name"], ["", ""], ["producer", "number"], ["epoch", "number"], ["open since offset", "number"], ["last write", "number"], ["", ""]];
    fill($("producers"), columns, found.producers.map((each) => [
      link(`${each.topic}-${each.partition}`, "/messages", { topic: each.topic, partition: each.partition }),
      each.hangs ? badge("hangs", "bad") : each.start_offset == null ? "" : badge("open", "good"), String(each.producer_id), String(each.producer_epoch),
      each.start_offset == null ? NOTHING : String(each.start_offset), each.last_timestamp == null ? NOTHING : `${durationText(found.now_ms - each.last_timestamp)} ago`,
      each.hangs ? named("Abort", `Abort producer ${each.producer_id} in ${each.topic}-${each.partition}`, () => abortHanging(each, minutes)) : ""]),
    topic ? "No producer with an id has written here." : "None hangs.");
    const left = found.count - found.producers.length;
    $("producers-note").textContent = `${topic ? plural(found.count, "producer") : plural(found.topics_count, "topic")}, ${wholeText(found.hanging_count)} hanging` + (left > 0 ? `; ${wholeText(left)} not shown` : "");
    $("refusals").hidden = !found.refusals_count;
    $("refusals").textContent = `Not asked: ${found.refusals.join("; ")}${found.refusals_count > found.refusals.length ? " …" : ""}`;
  } catch (error) {
    $("producers-note").textContent = problemText(error);
  }
}

function abort(name) {
  openDialog({
    title: `Abort the transaction of ${name}`, action: "Abort it", isDanger: true, text: "What it wrote is not committed, and its producer is fenced: it fails at its next write.",
    fields: [{ name: "confirm", label: `Type ${name} to confirm`, required: true }],
    run: async ({ confirm }) => { await postJson("/api/transaction/abort", { transactional_id: name, confirm }); lookAgain(); },
  });
}

function abortHanging({ topic, partition, producer_id: producer }, minutes) {
  openDialog({
    title: `Abort what hangs in ${topic}-${partition}`, action: "Abort it", isDanger: true, text: `What producer ${producer} left open there is not committed, and consumers go on.`,
    run: async () => { await postJson("/api/transaction/abort", { topic, partition, producer_id: producer, minutes }); await showProducers(); },
  });
}

async function showNames() {
  const { topics } = await getJson("/api/topics", { internal: "1" });
  $("topic-names").replaceChildren(...topics.map(({ name }) => { const option = make("option"); option.value = name; return option; }));
}

$("form").addEventListener("submit", (event) => { event.preventDefault(); showProducers(); });
for (const id of ["only", "open"]) $(id).addEventListener("input", () => lookAgain());
followTheme(() => {});
showRights().catch(showTrouble);
showNames().catch(showTrouble);
$("topic").value = parameter("topic");
if (parameter("topic")) showProducers();
lookAgain = keepLooking(look, EVERY_MS);
