// Inputs: the cards into which a recording or a picture is put, by a file, the microphone or an
// example.
const PLACES = ["first", "second", "probe", "enrolment"];
let examples = [];

function fits(...sent) {
  const size = sent.reduce((sum, blob) => sum + blob.size, 0);
  const most = state.max_bytes - 4096; // the rest of the request
  if (size <= most) return;
  const more = size - most;
  // Just over the limit, both sizes round to the same number of megabytes.
  const extra = more < 2 ** 18 ? `${Math.ceil(more / 1024)} kB` : megabytes(more);
  throw new Error(
    `${sent.length > 1 ? "Together these are" : "This is"} ${megabytes(size)}, ${extra} too ` +
      "much; " +
      `the server reads at most ${megabytes(state.max_bytes)} at once. ` +
      "Choose a shorter recording or a smaller photo.",
  );
}

// What was chosen is what is shown and sent, also where the file is changed, moved or deleted
// afterwards.
async function copy(blob) {
  try {
    return new Blob([await blob.arrayBuffer()], { type: blob.type });
  } catch {
    throw new Error("That file cannot be read: it was changed, moved or deleted. Choose it again.");
  }
}

async function put(place, blob, name) {
  const hadFocus = cardOf(place).contains(document.activeElement);
  empty(place);
  const ticket = tickets[place];
  try {
    fits(blob);
    blob = await copy(blob);
    const fill = speech() ? putSound : putPicture;
    const finish = await fill(place, blob, name, () => tickets[place] === ticket);
    if (tickets[place] !== ticket) return;
    blobs[place] = finish();
  } catch (error) {
    if (tickets[place] === ticket) {
      const line = text("p", "error", `${name}: ${error.message}`);
      line.setAttribute("role", "alert");
      empty(place).append(line); // in its card, where it stays beside that of another file
    }
  }
  ready();
  const card = cardOf(place);
  if (hadFocus && document.activeElement === document.body)
    (card.querySelector(".other") || card.querySelector("button")).focus();
}

const cardOf = (place) => document.querySelector(`[data-drop=${place}]`);

// The line under what was put in: its name, and a button for another one.
function nameLine(place, name) {
  const again = make("button", {
    className: "button small other",
    textContent: "Another file",
    ariaLabel: `Another file: ${titleOf(place).toLowerCase()}`,
  });
  again.onclick = () => {
    empty(place);
    cardOf(place).querySelector("button").focus();
  };
  return make("div", { className: "row" }, text("span", "soft file", name), again);
}

async function putSound(place, blob, name) {
  const made = await toWav(blob);
  if (!(await isRead(blob))) blob = made.blob;
  return () => {
    fits(blob);
    const player = make("audio", {
      controls: true,
      src: URL.createObjectURL(blob),
      ariaLabel: titleOf(place),
    });
    const figure = make("figure", { className: "waves" });
    figure.setAttribute("role", "img");
    const card = cardOf(place);
    card.classList.add("full");
    card.replaceChildren(text("span", "name", titleOf(place)), player, nameLine(place, name));
    waves[place] = made.wave;
    if (place === "first" || place === "second") drawPair();
    else {
      player.before(figure);
      drawWaves(figure, [["", made.wave]]);
    }
    return blob;
  };
}

async function putPicture(place, blob, name, current) {
  if (!blob.type.startsWith("image/")) throw new Error("That is no image.");
  const picture = make("img", { alt: titleOf(place), src: URL.createObjectURL(blob) });
  // Some formats are read by the server and not by browsers.
  const visible = await picture.decode().then(
    () => true,
    () => false,
  );
  if (!current()) return null;
  fits(blob);
  refusePhotograph(picture);
  const frame = make("div", { className: "photo" }, picture);
  if (!visible) picture.replaceWith(text("p", "soft", "This browser cannot show the picture."));
  const card = cardOf(place);
  card.classList.add("full");
  const line = nameLine(place, name);
  card.replaceChildren(
    text("span", "name", titleOf(place)),
    frame,
    visible ? wholePicture(picture.src) : "",
    line,
  );
  const offer =
    state.takes.kind === "photographs" ? await chooseFace(place, blob, frame) : () => {};
  return () => {
    offer();
    return blob;
  };
}

const titleOf = (place) =>
  ({ first: `First ${inputWord()}`, second: `Second ${inputWord()}` })[place] ||
  `A ${inputWord()}`.replace("A image", "An image");

function empty(place) {
  const card = cardOf(place);
  delete blobs[place];
  delete chosenFace[place];
  delete waves[place];
  card.classList.remove("full");
  tickets[place] = (tickets[place] || 0) + 1;
  if (recorders[place]) recorders[place]();
  clear();
  drawPair();
  const file = make("input", {
    type: "file",
    accept: speech() ? "audio/*" : "image/*",
    ariaLabel: `${place} ${inputWord()}`,
    tabIndex: -1, // the button before it opens it
  });
  file.id = `file-${place}`;
  file.onchange = () => file.files[0] && put(place, file.files[0], file.files[0].name);
  const pick = make("button", {
    className: "button",
    textContent: "Choose a file",
    ariaLabel: `Choose a file: ${titleOf(place).toLowerCase()}`,
  });
  pick.onclick = () => file.click();
  const acts = make("div", { className: "acts" }, pick, file);
  if (speech() && navigator.mediaDevices && window.MediaRecorder) {
    const mic = make("button", {
      className: "button",
      textContent: "Record",
    });
    mic.onclick = () => record(place, mic);
    acts.prepend(mic);
  }
  if (examples.length) acts.append(exampleList(place));
  const pair = place === "first" || place === "second";
  const most = `up to ${megabytes(state.max_bytes)}${pair ? " for both" : ""}`;
  card.replaceChildren(
    text("span", "name", titleOf(place)),
    acts,
    text("small", "", `or drop a file here, ${most}`),
  );
  card.setAttribute("role", "group");
  card.setAttribute("aria-label", titleOf(place));
  acceptDrops(place, card);
  return card;
}

function acceptDrops(place, card) {
  card.ondragover = (event) => {
    event.preventDefault();
    card.classList.add("over");
  };
  card.ondragleave = () => card.classList.remove("over");
  card.ondrop = (event) => {
    event.preventDefault();
    card.classList.remove("over");
    const file = event.dataTransfer.files[0];
    if (file) put(place, file, file.name);
  };
}

// Examples are files of whoever runs the server (--examples). They are asked for by number.
function exampleList(place) {
  const list = make("select", { ariaLabel: `Example: ${titleOf(place).toLowerCase()}` });
  list.append(make("option", { value: "", textContent: "Example \u2026" }));
  for (const [i, { name }] of examples.entries())
    list.append(make("option", { value: i, textContent: name }));
  list.onchange = () => list.value !== "" && putExample(place, +list.value);
  return list;
}

async function putExample(place, i) {
  try {
    const blob = await (await request(`examples/${i}`)).blob();
    await put(place, blob, examples[i].name);
  } catch (error) {
    clear();
    fail(error);
  }
}

// Two of one folder, which is most likely one subject, and two of different folders.
function examplePairs() {
  const folder = ({ name }) => name.slice(0, name.lastIndexOf("/") + 1);
  const pairs = [];
  for (const alike of [true, false])
    outer: for (let i = 0; i < examples.length; i++)
      for (let j = i + 1; j < examples.length; j++)
        if ((folder(examples[i]) === folder(examples[j])) === alike) {
          pairs.push([i, j]);
          break outer;
        }
  return pairs;
}

function offerExamples() {
  const box = $("examples");
  if (!examples.length) {
    const option = text("code", "", "--examples FOLDER");
    const line = ["No examples here: the server offers files of yours with ", option, "."];
    box.replaceChildren(make("span", {}, ...line));
    return;
  }
  const buttons = examplePairs().map(([i, j]) => {
    const label = `${examples[i].name} and ${examples[j].name}`;
    const button = make("button", { className: "button small example" });
    if (!speech()) button.append(...[i, j].map(thumbnail));
    button.append(label);
    button.onclick = async () => {
      await putExample("first", i);
      await putExample("second", j);
      $("compare").click();
    };
    return button;
  });
  box.replaceChildren("Try these two:", ...buttons);
}

function thumbnail(i) {
  const picture = make("img", { className: "thumb", alt: "" });
  request(`examples/${i}`)
    .then((answer) => answer.blob())
    .then((blob) => (picture.src = URL.createObjectURL(blob)))
    .catch(() => picture.remove());
  return picture;
}

async function loadExamples() {
  if (!state.examples) return offerExamples();
  examples = (await ask("examples")).examples;
  offerExamples();
  for (const place of PLACES) if (!blobs[place]) empty(place);
  // Somebody who opens the page sees what it does.
  if (!blobs.first && !blobs.second && !$("verify").hidden)
    $("examples").querySelector("button")?.click();
}
