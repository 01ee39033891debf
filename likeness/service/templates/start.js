// The start: what the server says of itself, the tabs, and the token.
const tabs = [...$("tabs").children];
const shownTabs = () => tabs.filter((tab) => !tab.hidden);

function openTab(tab) {
  for (const other of tabs) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", chosen);
    other.tabIndex = chosen ? 0 : -1;
    $(other.dataset.tab).hidden = !chosen;
  }
  clear();
  $("rule").hidden = tab.dataset.tab === "gallery" || $("rule").dataset.there === undefined;
  $("rule-none").hidden = tab.dataset.tab === "gallery" || !!places.length;
  // What a list says depends on what the server keeps. start() opens this tab again when that is
  // known.
  if (tab.dataset.tab === "gallery" && state.modality) list();
}

for (const tab of tabs) tab.onclick = () => openTab(tab);
$("tabs").onkeydown = (event) => {
  const shown = shownTabs();
  const at = shown.indexOf(document.activeElement);
  const to = {
    ArrowRight: (at + 1) % shown.length,
    ArrowLeft: (at + shown.length - 1) % shown.length,
    Home: 0,
    End: shown.length - 1,
  }[event.key];
  if (at < 0 || to === undefined) return;
  event.preventDefault();
  shown[to].focus();
  openTab(shown[to]);
};

$("subject").oninput = clear;
$("subject").onkeydown = (event) => {
  if (event.key === "Enter" && !$("enrol").disabled) $("enrol").click();
};
$("token").value = token;
$("token").oninput = () => {
  token = $("token").value.trim();
};
$("key").onsubmit = (event) => {
  event.preventDefault();
  loadExamples().catch(fail);
  if (state.gallery !== null) list();
};

function introduce() {
  $("about").textContent =
    `${state.modality} model ${state.name} \u00b7 ${state.similarity}`;
  $("about").title = `SHA-256 ${state.model}`;
  $("introduction").textContent = state.about;
  $("introduction").hidden = !state.about;
  $("takes").textContent = state.takes.text;
  const kept = `a small ${mediumWord()} of each enrolment, until its subject is removed`;
  $("privacy").textContent = state.keeps_media
    ? `What you send stays on this server, in memory, until the answer is given; it keeps ${kept}.`
    : "What you send stays on this server, in memory, until the answer is given.";
  if (state.gallery === null) {
    for (const tab of tabs) if (tab.dataset.tab !== "verify") tab.hidden = true;
    $("tabs").hidden = true;
  }
  if (state.token_for_reading) $("tabs").after($("key"));
}

async function start() {
  Object.assign(state, await ask("health"));
  Object.assign(measured, await ask("thresholds"));
  introduce();
  prepareSlider();
  for (const place of PLACES) empty(place);
  // Somebody may have opened another tab while the server was asked.
  openTab(shownTabs().find((tab) => tab.getAttribute("aria-selected") === "true") || tabs[0]);
  if (token || !state.token_for_reading) await loadExamples();
  else $("examples").textContent = "Examples are shown when the token is given.";
}

start().catch(fail);
