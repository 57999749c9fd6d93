// Disks and boxes: health, fill, what lies where, moves and reassignments. Text from the box is put in as text, never as HTML.
"use strict";
const EVERY_MS = 3000;
const DISK_KINDS = { online: "good", starting: "warn", full: "bad", offline: "bad", hung: "bad", down: "bad" };
let now = null;
let shown = parameter("disk");
let lookAgain = () => {};

async function lookAtAll() {
  const [disks, boxes] = await Promise.allSettled([getJson("/api/disks"), getJson("/api/boxes")]);
  // Boxes are asked by Kafka: without a broker the disks are still shown.
  if (boxes.status === "fulfilled") showBoxes(boxes.value);
  $("boxes-trouble").textContent = boxes.status === "fulfilled" ? "" : `Not known now: ${problemText(boxes.reason)}`;
  if (disks.status === "rejected") throw disks.reason;
  now = disks.value;
  showDisks();
  showMoves();
  showHeld();
}

function showDisks() {
  const columns = [["disk", "name"], ["state", ""], ["space", ""], ["free", "number"], ["partitions", "number"], ["holds", "number"], ["path", "soft"], ["", ""]];
  fill($("disks"), columns, now.disks.map((disk) => {
    const used = disk.size_bytes ? 1 - disk.free_bytes / disk.size_bytes : null, state = [badge(disk.state, DISK_KINDS[disk.state] ?? "warn")];
    if (disk.is_draining) state.push(" ", badge("draining", "warn"));
    if (disk.is_fenced) state.push(" ", badge("fenced", "bad"));
    if (disk.state === "starting" && disk.recovery_bytes) state.push(` ${percentText(100 * disk.recovery_done_bytes / disk.recovery_bytes)} checked`);
    const open = button("Partitions", "", () => { shown = disk.name; showHeld(); $("held").scrollIntoView(); });
    open.setAttribute("aria-label", `Partitions of ${disk.name}`);
    const actions = [open];
    if (now.may_drain) {
      const act = disk.is_draining ? button("Take it back", "change", () => cancelDrain(disk)) : button("Drain", "change", () => drain(disk));
      act.setAttribute("aria-label", `${act.textContent}: ${disk.name}`);
      actions.push(" ", act);
    }
    return [disk.name, state, used == null ? NOTHING : metered(used, used > 0.97 ? "bad" : used > 0.9 ? "warn" : "", percentText(100 * used)),
      disk.size_bytes ? `${bytesText(disk.free_bytes)} of ${bytesText(disk.size_bytes)}` : NOTHING, wholeText(disk.partitions), bytesText(disk.held_bytes), disk.path, actions];
  }), "no disks");
  const trouble = now.disks.filter((disk) => disk.state !== "online").length;
  $("disks-note").textContent = (trouble ? `${trouble} of ${now.disks.length} not online` : `${now.disks.length} online`)
    + (now.may_drain ? "" : "; to empty one, to add or to remove one: millrace disk");
}

function showMoves() {
  $("moving").hidden = !now.moves_count;
  fill($("moves"), [["partition", "name"], ["from", ""], ["to", ""], ["state", ""], ["copied", "number"], ["left", "number"], ["speed", "number"], ["why", "words"]], now.moves.map((move) => [
    `${move.topic}-${move.partition}`, move.source_disk, move.target_disk, badge(move.state, move.state === "failed" ? "bad" : ""), move.size_bytes < 0 ? NOTHING : bytesText(move.size_bytes),
    move.lag_bytes < 0 ? NOTHING : bytesText(move.lag_bytes), move.bytes_per_second ? rateText(move.bytes_per_second) : NOTHING, move.reason]), "no moves");
  $("moves-note").textContent = plural(now.moves_count, "move");
}

function showHeld() {
  const disk = now.disks.find((each) => each.name === shown) ?? null, wanted = $("only").value.trim();
  $("held").hidden = !disk;
  if (!disk) return;
  const held = disk.held.filter((each) => each.topic.includes(wanted));
  $("held-title").replaceChildren(`On disk ${disk.name}`, make("span", "", plural(disk.partitions, "partition") + (disk.partitions > disk.held.length ? `, the ${disk.held.length} largest` : "")));
  fill($("partitions"), [["topic", "name"], ["partition", "number"], ["", ""], ["bytes", "number"]], held.map((each) => [
    each.is_known ? link(each.topic, "/topics", { topic: each.topic }) : each.topic, String(each.partition),
    !each.is_known ? badge("of no topic", "warn") : each.is_led ? badge("leader", "good") : badge("follower", ""), bytesText(each.size_bytes)]), "Nothing lies here.");
}

function showBoxes({ boxes, missing, leaderless, reassignments, reassignments_count: count }) {
  fill($("boxes"), [["box", "number name"], ["", ""], ["address", ""], ["rack", ""], ["leads", "number"], ["replicas", "number"], ["not in sync", "number"], ["disks", "words"]], [
    ...boxes.map((box) => [
      String(box.broker_id), [...(box.is_controller ? [badge("controller", "good")] : []), ...(box.answers ? [] : [badge("no answer", "bad")])], box.address, box.rack ?? NOTHING, wholeText(box.led), wholeText(box.replicas),
      box.behind ? badge(wholeText(box.behind), "warn") : "0",
      box.disks.map((disk) => `${disk.path}: ${disk.error !== "NONE" ? disk.error : disk.total_bytes > 0 ? `${bytesText(disk.usable_bytes)} free of ${bytesText(disk.total_bytes)}` : "online"}`).join(" · ")]),
    ...Object.entries(missing).map(([broker, replicas]) => [broker, badge("missing", "bad"), NOTHING, NOTHING, "0", wholeText(replicas), badge(wholeText(replicas), "bad"), ""]),
  ], "no boxes");
  $("boxes-note").textContent = plural(boxes.length, "box").replace("boxs", "boxes") + (leaderless ? `; ${plural(leaderless, "partition")} without leader` : "");
  fill($("reassignments"), [["partition", "name"], ["replicas", ""], ["come", ""], ["go", ""]], reassignments.map((each) => [
    `${each.topic}-${each.partition}`, each.replicas.join(", "), each.adding.join(", ") || NOTHING, each.removing.join(", ") || NOTHING]), "None under way.");
  $("reassignments-note").textContent = count > reassignments.length ? `${wholeText(count)}, ${reassignments.length} shown` : "";
}

function drain({ name }) {
  openDialog({
    title: `Drain disk ${name}`, action: "Drain", isDanger: true,
    text: "Everything on it moves to the other disks, while it is written and read. It takes no new partitions from then on.",
    preview: async () => {
      const plan = await postJson("/api/disk/drain", { disk: name }), table = make("table");
      fill(table, [["partition", "name"], ["bytes", "number"], ["to", ""]], plan.moves.slice(0, 20).map((move) => [`${move.topic}-${move.partition}`, bytesText(move.size_bytes), move.target_disk]), "nothing to move");
      return [make("p", "", `${plural(plan.moves_count, "partition")}, ${bytesText(plan.size_bytes)}${plan.moves_count > 20 ? "; the first 20:" : ""}${plan.standing ? `; ${plan.standing} under way already` : ""}`), table];
    },
    run: async () => { await postJson("/api/disk/drain", { disk: name, execute: true }); lookAgain(); },
  });
}

function cancelDrain({ name }) {
  openDialog({
    title: `Use disk ${name} again`, action: "Use it again", text: "What is not moved yet stays on it, and it takes new partitions again.",
    run: async () => { await postJson("/api/disk/drain", { disk: name, cancel: true }); lookAgain(); },
  });
}

$("only").addEventListener("input", () => { if (now) showHeld(); });
followTheme(() => {});
showRights().catch(showTrouble);
lookAgain = keepLooking(lookAtAll, EVERY_MS);
