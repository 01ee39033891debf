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

// What the network sees, in its own size or smaller, with its own proportions.
function seen(picture, caption) {
  const { height, width } = state.takes;
  picture.style.aspectRatio = `${width} / ${height}`;
  picture.style.height = `min(${height}px, 8rem)`;
  return make("figure", { className: "seen" }, picture, caption);
}

// What a model without a detector makes of the picture: the whole of it in the network's size.
function wholePicture(address) {
  const { kind, height, width } = state.takes;
  if (kind !== "faces") return "";
  const small = make("img", { src: address, alt: "The picture in the size of the network" });
  const caption = `what the network sees: all of it, in ${height} \u00d7 ${width} pixels`;
  return seen(small, text("figcaption", "soft", caption));
}

// Asks for the faces of a photograph and shows them as a choice.
async function chooseFace(place, blob, frame) {
  const waiting = progress("Looking for faces \u2026");
  frame.after(waiting.line);
  let detection;
  try {
    detection = await ask("faces", form({ file: blob }));
  } finally {
    waiting.stop();
    waiting.line.remove();
  }
  if (!detection.faces.length)
    throw new Error("No face was found in this photograph. Choose one that shows a whole face.");
  return () => offerFaces(place, detection, frame);
}

function offerFaces(place, detection, frame) {
  const crop = make("img");
  const caption = make("figcaption", { className: "soft" });
  const take = (face) => {
    clear();
    chosenFace[place] = face.number;
    crop.src = face.crop;
    crop.alt = `Aligned crop of face ${face.number + 1}`;
    caption.textContent = `what the network sees: face ${face.number + 1}, aligned`;
  };
  const usable = detection.faces.filter((face) => face.crop);
  if (!usable.length) throw new Error(`No face can be aligned: ${detection.faces[0].reason}.`);
  const start = usable.find((face) => face.number === detection.chosen) || usable[0];
  const boxes = detection.faces.map((face) => faceBox(place, face, detection, start, take));
  const many = detection.found > 1 ? `${detection.found} faces: choose one` : "1 face";
  frame.append(...boxes);
  const group = make("fieldset", { className: "faces" }, text("legend", "soft", many));
  frame.replaceWith(group);
  group.append(frame);
  group.after(seen(crop, caption));
  take(start);
}

// A box is the label of a radio button, so that the arrow keys and a screen reader choose as well.
function faceBox(place, face, detection, start, take) {
  const [left, top, right, bottom] = face.box;
  const score = face.score.toFixed(2);
  const name = `Face ${face.number + 1} of ${detection.found}, found with a score of ${score}`;
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
  box.style.left = share(left, detection.width);
  box.style.top = share(top, detection.height);
  box.style.width = share(Math.min(right, detection.width) - Math.max(0, left), detection.width);
  box.style.height = share(Math.min(bottom, detection.height) - Math.max(0, top), detection.height);
  return box;
}
