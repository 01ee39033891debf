// Faces: where a detector finds them in a photograph, which of them is taken, and what the network
// sees of it.
const chosenFace = {}; // place -> the number of the face; undefined where there is no choice

// What is known before anything is sent: a model of crops takes one size.
function refusePhotograph(picture) {
  const { kind, height, width } = state.takes;
  const [tall, wide] = [picture.naturalHeight, picture.naturalWidth];
  if (kind !== "crops" || !wide || (tall === height && wide === width)) return;
  throw new Error(
    `This picture has ${tall} \u00d7 ${wide} pixels (height \u00d7 width), but the model takes ` +
      `aligned crops of ${height} \u00d7 ${width}. For photographs the server needs a detector: ` +
      "start it with --detector FILE.onnx.",
  );
}

const seen = (picture, caption) =>
  make("figure", { className: "seen" }, picture, text("figcaption", "soft", caption));

// What a model without a detector makes of the picture: the whole of it in the network's size.
function wholePicture(address) {
  const { kind, height, width } = state.takes;
  if (kind !== "faces") return "";
  const small = make("img", { src: address, alt: "The picture in the size of the network" });
  small.style.width = `${width}px`;
  small.style.height = `${height}px`;
  return seen(small, `what the network sees: all of it, in ${height} \u00d7 ${width} pixels`);
}

// Asks for the faces of a photograph and shows them as a choice.
async function chooseFace(place, blob, frame) {
  const waiting = progress("Looking for faces \u2026");
  frame.after(waiting.line);
  let got;
  try {
    got = await ask("faces", form({ file: blob }));
  } finally {
    waiting.stop();
    waiting.line.remove();
  }
  if (!got.faces.length)
    throw new Error("No face was found in this photograph. Choose one that shows a whole face.");
  return () => offerFaces(place, got, frame);
}

function offerFaces(place, got, frame) {
  const crop = make("img", { width: state.takes.width, height: state.takes.height });
  const caption = make("figcaption", { className: "soft" });
  const take = (face) => {
    clear();
    chosenFace[place] = face.number;
    crop.src = face.crop;
    crop.alt = `Aligned crop of face ${face.number + 1}`;
    caption.textContent = `what the network sees: face ${face.number + 1}, aligned`;
  };
  const usable = got.faces.filter((face) => face.crop);
  if (!usable.length) throw new Error(`No face can be aligned: ${got.faces[0].reason}.`);
  const start = usable.find((face) => face.number === got.chosen) || usable[0];
  const boxes = got.faces.map((face) => faceBox(place, face, got, start, take));
  const many = got.found > 1 ? `${got.found} faces: choose one` : "1 face";
  frame.append(...boxes);
  const group = make("fieldset", { className: "faces" }, text("legend", "soft", many));
  frame.replaceWith(group);
  group.append(frame);
  group.after(make("figure", { className: "seen" }, crop, caption));
  take(start);
}

// A box is the label of a radio button, so that the arrow keys and a screen reader choose as well.
function faceBox(place, face, got, start, take) {
  const [left, top, right, bottom] = face.box;
  const score = face.score.toFixed(2);
  const name = `Face ${face.number + 1} of ${got.found}, found with a score of ${score}`;
  const pick = make("input", {
    type: "radio",
    name: `face-${place}`,
    value: face.number,
    checked: face === start,
    disabled: !face.crop,
    ariaLabel: face.crop ? name : `${name}: it cannot be aligned`,
  });
  pick.onchange = () => take(face);
  const box = make(
    "label",
    { className: "box", title: face.reason || name },
    pick,
    text("span", "", face.number + 1),
  );
  const share = (at, size) => `${Math.max(0, Math.min(100, (100 * at) / size))}%`;
  box.style.left = share(left, got.width);
  box.style.top = share(top, got.height);
  box.style.width = share(Math.min(right, got.width) - Math.max(0, left), got.width);
  box.style.height = share(Math.min(bottom, got.height) - Math.max(0, top), got.height);
  return box;
}
