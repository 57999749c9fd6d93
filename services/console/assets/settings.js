// The settings of a box, as they are in effect, and where each comes from. Text from the box is put in as text, never as HTML.
"use strict";
const EVERY_MS = 10000;
const KINDS = { file: "good", "dynamic, this box": "warn", "dynamic, all boxes": "warn" };
let now = null;

async function look() {
  now = await getJson("/api/settings", $("box").value ? { box: $("box").value } : {});
  if ($("box").options.length !== now.boxes.length) {
    $("box").replaceChildren(...now.boxes.map((id) => { const option = make("option", "", String(id)); option.value = id; return option; }));
    $("box").value = now.box;
  }
  show();
}

function show() {
  const wanted = $("only").value.trim().toLowerCase(), source = $("source").value;
  const shown = now.settings.filter((each) => each.source.startsWith(source) && `${each.name} ${each.value ?? ""}`.toLowerCase().includes(wanted));
  fill($("settings"), [["setting", "words name"], ["value", "words"], ["from", ""], ["otherwise", "words soft"]], shown.map((each) => [
    [each.name, explained(each.documentation)], each.is_hidden ? "not shown" : each.value == null ? NOTHING : [visible(cut(each.value, 500)), ...(meaningOf(each.name, each.value) ? [" ", make("small", "", meaningOf(each.name, each.value))] : [])],
    badge(each.source, KINDS[each.source] ?? ""), each.instead_of == null ? "" : visible(cut(each.instead_of, 200))]), "No setting is called so.");
  const own = now.settings.filter((each) => each.source !== "default").length;
  $("settings-note").textContent = `of box ${now.box}: ${plural(now.settings.length, "setting")}, ${wholeText(own)} not at the default`;
}

function explained(text) {
  const made = make("span", "under");
  made.append(...prose(text));
  return made;
}

for (const id of ["only", "source"]) $(id).addEventListener("input", () => { if (now) show(); });
followTheme(() => {});
const lookAgain = keepLooking(look, EVERY_MS);
$("box").addEventListener("input", () => lookAgain());
