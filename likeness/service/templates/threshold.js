// The threshold: what each place of the slider means, and how certain an answer is.
//
// measured.places are [threshold, FAR, FRR] by rising threshold, as the model's thresholds were
// measured. No rate is below the share that ten trials are; at that share "at most" is said.
let places = []; // of the slider: [threshold, FAR, FRR]
let threshold = null; // what decides: the server's, or where the slider was moved
let source = ""; // where it comes from; "" for a place of the slider or a number of the server's

const PAIRS = {
  speaker: ["pairs of strangers", "pairs of one speaker"],
  face: ["pairs of strangers", "pairs of one person"],
};
const pairWords = () => PAIRS[state.modality] || ["pairs of two subjects", "pairs of one subject"];

// The rates of any threshold, rather too high than too low: those of the neighbours that make more
// errors.
function ratesAt(score) {
  const below = measured.places.findLast((place) => place[0] <= score);
  const above = measured.places.find((place) => place[0] >= score);
  return [below ? below[1] : 1, above ? above[2] : 1];
}

const shareOf = (rate, least) =>
  rate <= least * (1 + 1e-9) ? `at most ${inMany(least, Math.ceil)}` : inMany(rate);

function meaning(at) {
  const [far, frr] = ratesAt(at);
  const [strangers, same] = pairWords();
  const passes = shareOf(far, measured.least_far);
  const refused = shareOf(frr, measured.least_frr);
  const sentence = `${passes} ${strangers} would pass; ${refused} ${same} would be refused.`;
  return sentence[0].toUpperCase() + sentence.slice(1);
}

// In a gallery a stranger has as many chances as there are subjects.
function meaningAmong(at, enrolled) {
  const [far] = ratesAt(at);
  if (!measured.places.length || enrolled < 2 || far >= 1) return "";
  const rate = 1 - (1 - far) ** enrolled;
  return (
    `Among ${enrolled} who are enrolled, a stranger may pass for somebody in up to ` +
    `${inMany(rate, Math.ceil)} searches.`
  );
}

function prepareSlider() {
  threshold = state.threshold;
  source = state.source;
  const card = $("rule");
  if (measured.places.length < 2) {
    $("rule-none").hidden = false;
    $("rule-none").textContent =
      `There is no slider for the threshold: ${measured.reason || "too few are stored"}.`;
    return;
  }
  places = [...measured.places];
  if (threshold !== null && !places.some((place) => place[0] === threshold)) {
    places.push([threshold, ...ratesAt(threshold)]);
    places.sort((a, b) => a[0] - b[0]);
  }
  dropTwins();
  card.dataset.there = "";
  const slider = $("slider");
  slider.max = places.length - 1;
  slider.oninput = () => moveTo(places[+slider.value][0]);
  const marks = measured.marks
    .filter((mark) => places.some((place) => place[0] === mark.threshold))
    .map((mark) => {
      const button = text("button", "button small", mark.name);
      button.onclick = () => moveTo(mark.threshold);
      return button;
    });
  if (state.threshold !== null) {
    const back = text("button", "button small", "The server\u2019s own");
    back.onclick = () => moveTo(state.threshold);
    marks.push(back);
  }
  $("marks").replaceChildren(...marks);
  const sizes = [
    `${measured.nontargets.toLocaleString("en")} ${pairWords()[0]}`,
    `${measured.targets.toLocaleString("en")} ${pairWords()[1]}`,
  ];
  if (measured.subjects !== null) sizes.unshift(count(measured.subjects, "subject"));
  $("rule-source").textContent =
    `Measured on ${measured.data} (${sizes.join(", ")}) on ${measured.date}. Other people and ` +
    `other ${speech() ? "microphones" : "cameras"} may give other rates` +
    (measured.subjects !== null && measured.subjects < 20 ? ": so few subjects say little." : ".");
  describeSlider();
}

// Of places that show the same number the first stays; so do all that have a name, and the
// strictest.
function dropTwins() {
  const named = new Set(measured.marks.map((mark) => mark.threshold));
  if (state.threshold !== null) named.add(state.threshold);
  const shown = new Set([...named].map(number));
  places = places.filter(([at], i) => {
    const stays = named.has(at) || i === places.length - 1 || !shown.has(number(at));
    shown.add(number(at));
    return stays;
  });
}

function moveTo(at) {
  threshold = at;
  source = at === state.threshold ? state.source : "";
  describeSlider();
  judgeAgain();
}

// The score that is judged, on the scale of the slider.
function markScore(score) {
  const above = places.findIndex(([at]) => at > score);
  const after = above < 0 ? places.length - 1 : above;
  const before = Math.max(0, after - 1);
  const [low, high] = [places[before][0], places[after][0]];
  const part = high > low ? Math.max(0, Math.min(1, (score - low) / (high - low))) : 1;
  const mark = $("score-there");
  mark.hidden = false;
  mark.firstChild.textContent = `score ${number(score)}`;
  mark.firstChild.style.left = `${(100 * (before + part)) / (places.length - 1)}%`;
}

function describeSlider() {
  const slider = $("slider");
  if (threshold === null) {
    slider.value = Math.floor((places.length - 1) / 2);
    slider.setAttribute("aria-valuetext", "no threshold is chosen");
    $("rule-at").textContent = "not chosen";
    $("meaning").textContent = "Move the slider, and the threshold decides.";
    return;
  }
  slider.value = places.findIndex((place) => place[0] === threshold);
  const sentence = meaning(threshold);
  slider.setAttribute("aria-valuetext", `${number(threshold)}. ${sentence}`);
  $("rule-at").textContent = number(threshold);
  $("meaning").textContent = sentence;
}

// How certain a verdict is, from -2 (clearly different) to 2 (clearly the same); null where nothing
// says it.
//
// The tails of the errors are compared: of strangers' pairs those that score as high, of the
// others those that score as low. A verdict is clear where this ratio is ten times away from that
// of the threshold and from 1, or where half of the pairs of its own kind score beyond it.
function certainty(score, same, probability) {
  if (threshold !== null && measured.places.length >= 2) {
    const [far, frr] = ratesAt(score);
    const [farThere, frrThere] = ratesAt(threshold);
    const sign = same ? 1 : -1;
    const ratio = Math.log10(frr / far);
    const distance = sign * (ratio - Math.log10(frrThere / farThere));
    const typical = same ? frr : far;
    const beyond = Math.min(distance, sign * ratio);
    if (beyond >= 1 || (typical >= 0.5 && sign * ratio >= 1)) return 2 * sign;
    return beyond >= 0.3 || (typical >= 0.2 && sign * ratio >= 0.3) ? sign : 0;
  }
  if (probability === null) return null;
  const mine = same ? probability : 1 - probability;
  return (same ? 1 : -1) * (mine >= 0.99 ? 2 : mine >= 0.8 ? 1 : 0);
}

const CERTAINTIES = [
  "Clearly different",
  "Probably different",
  "Too close to call",
  "Probably the same",
  "Clearly the same",
];

// Five steps, of which one is filled and named: the words say what the colour says.
function shades(level) {
  if (level === null) return "";
  const steps = CERTAINTIES.map((_, i) => {
    const step = make("i", { className: `shade s${i}` });
    if (i === level + 2) step.classList.add("here");
    return step;
  });
  const bar = make("div", { className: "shades", ariaHidden: "true" }, ...steps);
  const word = text("p", `certainty s${level + 2}`, CERTAINTIES[level + 2]);
  return make("div", { className: "certain" }, word, bar);
}
