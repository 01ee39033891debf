// Turns: what is shown belongs to the inputs of one moment. Every change of an input begins a new
// turn, and answers of an earlier turn are not shown.
const blobs = {}; // place -> the blob that is sent
const tickets = {}; // place -> the number of its input; what is made of an earlier one is dropped
let turn = 0;
let working = 0; // the turn whose task runs; 0 for none
let clock = 0;

const calm = matchMedia("(prefers-reduced-motion: reduce)");

function show(...inner) {
  $("answer").replaceChildren(...inner);
  $("answer").hidden = false;
  $("answer").scrollIntoView({ block: "nearest", behavior: calm.matches ? "auto" : "smooth" });
}

const fail = (error) => show(text("p", "error", error.message));

function clear() {
  turn++;
  working = 0;
  clearInterval(clock);
  lastAnswer = null;
  $("score-there").hidden = true;
  $("answer").hidden = true;
  $("answer").replaceChildren();
  $("answer").removeAttribute("aria-busy");
  ready();
}

// A line that turns and counts seconds; `stop` ends its clock.
function progress(what) {
  const begun = Date.now();
  const time = make("span", { className: "soft time", ariaHidden: "true" });
  const tick = () => {
    time.textContent = `${Math.floor((Date.now() - begun) / 1000)} s`;
  };
  tick();
  const ticking = setInterval(tick, 1000);
  const line = make("p", { className: "busy" }, make("i"), what, time);
  return { line, ticking, stop: () => clearInterval(ticking) };
}

// lasting: the task changes the gallery, so that its end is shown also where an input was changed
// meanwhile.
async function busy(what, task, lasting = false) {
  const button = document.activeElement;
  clear();
  const mine = turn;
  working = mine;
  ready();
  const shown = progress(what);
  clock = shown.ticking;
  show(shown.line);
  $("answer").setAttribute("aria-busy", "true");
  let answer;
  try {
    const finish = await task();
    answer = () => finish && finish();
  } catch (error) {
    answer = () => fail(error);
  }
  if (turn !== mine && (!lasting || working || !$("answer").hidden)) return;
  if (turn === mine) clear();
  answer();
  // A button that was disabled meanwhile has lost the focus.
  if (document.activeElement === document.body && button.isConnected) button.focus();
}

function ready() {
  $("compare").disabled = !!working || !(blobs.first && blobs.second);
  $("search").disabled = !!working || !blobs.probe;
  $("enrol").disabled = !!working || !(blobs.enrolment && $("subject").value.trim());
  for (const remove of $("entries").querySelectorAll(".remove")) remove.disabled = !!working;
}
