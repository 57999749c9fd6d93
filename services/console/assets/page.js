// The first page: asks /api/overview every two seconds, and /api/history for charts of longer times. Text from the box is put in as text, never as HTML.
"use strict";
const EVERY_MS = 2000;
const ANSWER_MS_MAX = 5000;

// ---- small pieces

function tile(what, [value, unit], more) {
  const made = make("div", "tile"), shown = make("div", "value", value);
  shown.dataset.figure = what;
  if (unit) shown.append(make("small", "", unit));
  made.append(make("div", "what", what), shown, make("div", "more", more || "\u00a0"));
  return made;
}

const perSecond = ([value, unit]) => [value, unit + "/s"];

// ---- parts of the page

function showHead(box) {
  const missing = Object.keys(box.missing);
  const ready = $("ready");
  ready.textContent = missing.length ? `${missing.length === 1 ? missing[0] : `${missing.length} processes`} not serving` : "ready";
  ready.className = `badge ${missing.length ? "bad" : "good"}`;
  const pairs = [["box", box.box], ["Kafka", box.kafka], ["broker", box.broker_id], ["release", box.version ?? NOTHING], ["up", durationText(box.now_ms - box.started_ms)]];
  if (box.open_listeners.length) pairs.push(["without authentication", box.open_listeners.join(", ")]);
  $("who").replaceChildren(...pairs.map(([name, value]) => { const pair = make("div"); pair.append(make("dt", "", name), make("dd", "", value)); return pair; }));
  document.title = `${missing.length ? "⚠ " : ""}Millrace ${box.box}`;
}

function showTiles(box) {
  const { rates, latency } = box;
  $("tiles").replaceChildren(
    tile("Received", perSecond(bytesParts(rates.received_bytes)), `${countText(rates.produce_requests)} produces/s`),
    tile("Sent", perSecond(bytesParts(rates.sent_bytes)), `${countText(rates.fetch_requests)} fetches/s`),
    tile("Records in", perSecond(countParts(rates.records)), plural(box.partitions_count, "partition")),
    tile("Syslog", perSecond(countParts(rates.syslog_lines)), `${plural(box.senders, "TCP sender")}`),
    tile("Produce p99", microsParts(latency.produce.p99_us), `p50 ${microsText(latency.produce.p50_us)}`),
    tile("Fetch p99", microsParts(latency.fetch.p99_us), `p50 ${microsText(latency.fetch.p50_us)}`),
    tile("Kafka clients", countParts(box.connections), "connections"),
    tile("Processor", [percentText(box.cpu_percent).replace(" %", ""), "%"], "of one core"),
    tile("Memory", bytesParts(box.memory_bytes || null), "PSS with arenas"),
  );
}

const DISK_KINDS = { online: "good", starting: "warn", full: "bad", offline: "bad", hung: "bad", down: "bad" };

function showDisks(box) {
  const columns = [["disk", "name"], ["state", ""], ["space", ""], ["free", "number"], ["written", "number"], ["append p50", "number"], ["p99", "number"],
    ["sync p99", "number"], ["cold read p99", "number"], ["partitions", "number"], ["fenced", ""], ["path", "soft"]];
  fill($("disks"), columns, box.disks.map((disk) => {
    const used = disk.size_bytes ? 1 - disk.free_bytes / disk.size_bytes : null;
    const state = [badge(disk.state, DISK_KINDS[disk.state] || "warn")];
    if (disk.is_draining) state.push(" ", badge("draining", "warn"));
    if (disk.state === "starting" && disk.recovery_bytes) state.push(` ${percentText(100 * disk.recovery_done_bytes / disk.recovery_bytes)} checked`);
    const fenced = disk.is_fenced ? badge("now", "bad") : disk.recent_fences ? badge(`${disk.recent_fences} × of late`, "warn") : "no";
    return [disk.name, state, used == null ? NOTHING : metered(used, used > 0.97 ? "bad" : used > 0.9 ? "warn" : "", percentText(100 * used)),
      disk.size_bytes ? `${bytesText(disk.free_bytes)} of ${bytesText(disk.size_bytes)}` : NOTHING, rateText(disk.written_bytes_per_s), microsText(disk.append_p50_us),
      microsText(disk.append_p99_us), microsText(disk.probe_p99_us), microsText(disk.read_p99_us), wholeText(disk.partitions), fenced, disk.path ?? NOTHING];
  }), "no disks");
  const trouble = box.disks.filter((disk) => disk.state !== "online").length;
  $("disks-note").textContent = trouble ? `${trouble} of ${box.disks.length} not online` : `${box.disks.length} online`;
}

function showProcesses(box) {
  const largest = Math.max(...box.processes.map((process) => process.pss_bytes || process.resident_bytes || 0), 1);
  const columns = [["process", "name"], ["state", ""], ["up", "number"], ["restarts", "number"], ["CPU", "number"], ["memory", "number"], ["pid", "number soft"]];
  fill($("processes"), columns, box.processes.map((process) => {
    const memory = process.pss_bytes ?? process.resident_bytes;
    const kind = process.state === "serving" ? "good" : ["starting", "recovering", "stopping"].includes(process.state) ? "warn" : "bad";
    const age = process.pid === 0 ? null : box.now_ms - process.started_ms; // null: it runs, and its pid is not shown here
    const restarts = process.restarts && age != null && age < 900000 ? badge(process.restarts, "warn") : wholeText(process.restarts);
    return [process.name, badge(process.state, kind), durationText(age), restarts, percentText(process.cpu_percent),
      memory == null ? NOTHING : metered(memory / largest, "", bytesText(memory) + (process.pss_bytes == null ? " RSS" : "")), process.pid || NOTHING];
  }), "no processes");
  $("processes-note").textContent = `CPU of one core over ${box.seconds.toFixed(0)} s; memory is PSS`;
}

function showAlarms(box) {
  const firing = box.alarms.filter((alarm) => alarm.ended_ms == null);
  const kinds = { critical: "bad", warning: "warn" };
  fill($("alarms"), [["", ""], ["what", "words"], ["began", "number soft"], ["lasted", "number soft"]], box.alarms.slice(0, 8).map((alarm) => [
    badge(alarm.ended_ms == null ? alarm.severity : "over", alarm.ended_ms == null ? kinds[alarm.severity] : ""),
    [alarm.words, make("span", "under", `${alarm.name}: ${alarm.meaning}`)],
    timeText(alarm.began_ms).slice(0, 19),
    alarm.ended_ms == null ? "goes on" : durationText(alarm.ended_ms - alarm.began_ms),
  ]), "Nothing was the matter.");
  $("alarms-note").textContent = firing.length ? `${firing.length} now` : "none now";
  const trouble = $("trouble");
  trouble.hidden = !firing.length;
  trouble.textContent = firing.map((alarm) => alarm.words).join(" · ");
}

function showGroups(box) {
  const most = Math.max(...box.groups.map((group) => group.records), 1);
  fill($("groups"), [["group", "name"], ["state", ""], ["reads", "words"], ["partitions", "number"], ["records behind", "number"]], box.groups.map((group) => [
    link(group.group, "/groups", { group: group.group }), badge(group.state.toLowerCase() || NOTHING, group.state === "Stable" ? "good" : group.state === "Empty" ? "" : "warn"),
    group.topics.join(", ") + (group.topics_count > group.topics.length ? ` and ${group.topics_count - group.topics.length} more` : ""),
    wholeText(group.partitions), metered(group.records / most, group.records > 1e6 ? "warn" : "", wholeText(group.records)),
  ]), "No group has committed offsets.");
  const left = box.groups_count - box.groups.length;
  $("groups-note").textContent = box.groups_count ? plural(box.groups_count, "group") + (left > 0 ? `, the ${box.groups.length} furthest behind` : "") : "";
}

function showTopics(box) {
  const columns = [["topic", "name"], ["partitions", "number"], ["", ""], ["records in/s", "number"], ["in", "number"], ["out", "number"], ["records", "number"], ["size", "number"]];
  fill($("topics"), columns, box.topics.map((topic) => [
    link(topic.name, "/topics", { topic: topic.name }), wholeText(topic.partitions), topic.not_served ? badge(`${topic.not_served} not served`, "bad") : "", countText(topic.records_per_s),
    rateText(topic.received_bytes_per_s), rateText(topic.sent_bytes_per_s), wholeText(topic.records), bytesText(topic.size_bytes),
  ]), "No topics yet.");
  const left = box.topics_count - box.topics.length;
  $("topics-note").textContent = `${plural(box.topics_count, "topic")}, ${plural(box.partitions_count, "partition")}` + (left > 0 ? `; the ${box.topics.length} busiest` : "")
    + (box.not_served_count ? `; ${plural(box.not_served_count, "partition")} not served` : "") + (box.hidden ? `; ${box.hidden}` : "");
}

function showSyslog(box) {
  const { received, stored, duplicate, lost, in_flight, refused, kernel_drops, silent_senders } = box.syslog;
  const sums = [[stored, "stored"], [duplicate, "stored before"], [lost, "lost and counted"], [in_flight, "in flight"]];
  $("syslog").textContent = `${wholeText(received)} lines received = ` + sums.map(([count, what]) => `${wholeText(count)} ${what}`).join(" + ");
  $("syslog-note").textContent = (kernel_drops ? `${wholeText(kernel_drops)} more dropped by the kernel` : "none dropped by the kernel")
    + (refused ? `, ${wholeText(refused)} refused` : "") + (silent_senders ? `; ${plural(silent_senders, "silent sender")}` : "");
}

// ---- charts

const charted = (all, names) => [
  ...names.map(([title, name]) => [title, all.series[name] || []]),
  ...(before ? names.map(([title, name]) => [`${title}, a day before`, dayBefore(all, before, name), true]) : []),
];
const milliseconds = (value) => microsText(value * 1000);
const past = new ChartHistory();
const charts = [
  new Chart($("chart-bytes"), "box", rateText, BINARY_STEPS, (all) => charted(all, [["received", "received_bytes_per_s"], ["sent", "sent_bytes_per_s"]])),
  new Chart($("chart-records"), "box", (value) => countText(value) + "/s", null, (all) => charted(all, [["records in", "records_per_s"], ["syslog lines", "syslog_lines_per_s"]])),
  new Chart($("chart-latency"), "box", milliseconds, null, (all) => charted(all, [["produce", "produce_p99_ms"], ["fetch", "fetch_p99_ms"], ["syslog batch", "syslog_p99_ms"]])),
];
const ofDisks = new Chart($("chart-disks"), "box", rateText, BINARY_STEPS, (all) => Object.entries(all.disks));
const ofLong = [
  new Chart($("chart-full"), "box", percentText, null, (all) => charted(all, [["used", "fullest_disk_percent"]])),
  new Chart($("chart-lag"), "box", countText, null, (all) => charted(all, [["records", "lag_records"]])),
  new Chart($("chart-cpu"), "box", percentText, null, (all) => charted(all, [["processor", "cpu_percent"]])),
];

// ---- the time that they show: `span` is null for the last quarter of an hour

const NARROWEST_MS = 600000, LONGEST_MS = 2592000000, DAY_MS = 86400000, HISTORY_EVERY_MS = 60000;
let span = null, long = null, before = null, askedAt = 0;

async function lookBack() {
  const now = Date.now();
  if (now - askedAt < HISTORY_EVERY_MS) return;
  askedAt = now;
  const to = span ? span.to ?? now : now, from = span ? span.from ?? to - span.length : to - WINDOW_SECONDS * 1000;
  const part = async (start, end) => chartedSpan(await getJson("/api/history", { from: Math.round(start), to: Math.round(end) }));
  const asked = span;
  const found = await Promise.all([span ? part(from, to) : null, $("yesterday").checked ? part(from - DAY_MS, to - DAY_MS) : null]);
  if (span !== asked) return;
  [long, before] = found;
}

function drawCharts() {
  document.body.classList.toggle("long-charts", Boolean(span));
  const shown = span ? long : past;
  if (!shown?.times.length) return;
  for (const chart of [...charts, ...(span ? ofLong : [ofDisks])]) chart.draw(shown);
}

async function show(next) {
  span = next;
  long = before = null;
  askedAt = 0;
  $("range").value = !span ? "live" : span.length ? String(span.length) : "chosen";
  for (const id of ["earlier", "zoom-in", "zoom-out"]) $(id).disabled = false;
  $("later").disabled = !span || span.length;
  $("range-note").textContent = span?.from ? `${timeText(span.from).slice(0, 16)} to ${timeText(span.to).slice(0, 16)}, ${ZONE}` : "";
  try {
    await lookBack();
    drawCharts();
  } catch (error) {
    $("range-note").textContent = problemText(error);
  }
}

function ends() {
  const to = span?.to ?? Date.now();
  return [span?.from ?? to - (span?.length ?? WINDOW_SECONDS * 1000), to];
}

function move(share, factor) {
  const [from, to] = ends(), now = Date.now();
  const length = Math.min(Math.max((to - from) * factor, NARROWEST_MS), LONGEST_MS), middle = (from + to) / 2 + share * (to - from);
  const end = Math.min(middle + length / 2, now);
  show({ from: Math.max(end - length, now - LONGEST_MS), to: end });
}

for (const chart of [...charts, ofDisks, ...ofLong]) chart.onZoom = (from, to) => { const middle = (from + to) / 2, half = Math.max(to - from, NARROWEST_MS) / 2; show({ from: middle - half, to: Math.min(middle + half, Date.now()) }); };
$("range").addEventListener("change", () => show($("range").value === "live" ? null : { length: Number($("range").value) }));
$("earlier").addEventListener("click", () => move(-0.5, 1));
$("later").addEventListener("click", () => move(0.5, 1));
$("zoom-in").addEventListener("click", () => move(0, 0.5));
$("zoom-out").addEventListener("click", () => move(0, 2));
$("yesterday").addEventListener("change", () => show(span));
$("log").addEventListener("change", () => { for (const chart of [...charts, ofDisks, ...ofLong]) chart.isLogarithmic = $("log").checked; drawCharts(); });
show(null);

// ---- the loop

let answeredAt = null;

async function look() {
  try {
    const answer = await fetch(`${here("/api/overview")}?since=${past.last_ms}`, { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS_MAX) });
    if (answer.status === 401) goToLogin();
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const box = await answer.json();
    answeredAt = new Date();
    document.body.classList.remove("stale");
    past.add(box.history);
    for (const show of [showHead, showTiles, showDisks, showProcesses, showAlarms, showGroups, showTopics, showSyslog]) show(box);
    if (span || $("yesterday").checked) await lookBack().catch((error) => { $("range-note").textContent = problemText(error); });
    drawCharts();
    $("footer").textContent = `as of ${clockText(answeredAt)}; rates over ${box.seconds.toFixed(0)} s; times are of ${ZONE}.`;
  } catch (error) {
    document.body.classList.add("stale");
    $("ready").textContent = answeredAt ? `no answer since ${clockText(answeredAt)}` : "no answer";
    $("ready").className = "badge bad";
  }
  setTimeout(look, EVERY_MS);
}

followTheme(() => {
  for (const chart of [...charts, ofDisks, ...ofLong]) chart.forget();
  drawCharts();
});
look();
