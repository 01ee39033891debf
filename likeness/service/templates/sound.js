// Sound: recordings from files and from the microphone, and how they are drawn.
const waves = {}; // place -> the samples at WAVE_HZ, for drawing
const recorders = {}; // place -> what stops its recording
const WAVE_HZ = 16000;
const COLUMNS = 480; // of a drawn waveform

// Sound that the server reads is sent as it is, so that scores are those of the command line. All
// else becomes 16-bit mono WAV.
async function isRead(blob) {
  const head = String.fromCharCode(...new Uint8Array(await blob.slice(0, 4).arrayBuffer()));
  return ["RIFF", "fLaC", "OggS"].includes(head) || head.startsWith("ID3");
}

async function toWav(blob) {
  const context = new AudioContext();
  let sound;
  try {
    sound = await context.decodeAudioData(await blob.arrayBuffer());
  } catch {
    throw new Error("This browser cannot decode that sound.");
  } finally {
    context.close();
  }
  const length = Math.max(1, Math.round(sound.duration * WAVE_HZ));
  const off = new OfflineAudioContext(1, length, WAVE_HZ);
  const source = off.createBufferSource();
  source.buffer = sound;
  source.connect(off.destination);
  source.start();
  const wave = (await off.startRendering()).getChannelData(0);
  return { blob: wavOf(wave), wave };
}

function wavOf(wave) {
  const view = new DataView(new ArrayBuffer(44 + 2 * wave.length));
  const letters = (at, word) => [...word].forEach((c, i) => view.setUint8(at + i, c.charCodeAt(0)));
  letters(0, "RIFF");
  view.setUint32(4, 36 + 2 * wave.length, true);
  letters(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, WAVE_HZ, true);
  view.setUint32(28, 2 * WAVE_HZ, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  letters(36, "data");
  view.setUint32(40, 2 * wave.length, true);
  wave.forEach((x, i) => view.setInt16(44 + 2 * i, Math.max(-1, Math.min(1, x)) * 32767, true));
  return new Blob([view], { type: "audio/wav" });
}

const secondsOf = (wave) => wave.length / WAVE_HZ;
const peakOf = (wave) => wave.reduce((peak, x) => Math.max(peak, Math.abs(x)), 1e-4);

// One waveform: a bar for each column of the time axis, which may be longer than the sound.
function track(wave, seconds, peak) {
  const space = "http://www.w3.org/2000/svg";
  const picture = document.createElementNS(space, "svg");
  picture.setAttribute("viewBox", `0 -1 ${COLUMNS} 2`);
  picture.setAttribute("preserveAspectRatio", "none");
  picture.setAttribute("aria-hidden", "true");
  const step = (seconds * WAVE_HZ) / COLUMNS;
  let path = "";
  for (let column = 0; column * step < wave.length && column < COLUMNS; column++) {
    const from = Math.floor(column * step);
    const to = Math.min(wave.length, Math.max(from + 1, Math.floor((column + 1) * step)));
    let top = 0;
    for (let i = from; i < to; i++) top = Math.max(top, Math.abs(wave[i]));
    const size = Math.max(0.015, top / peak).toFixed(3);
    path += `M${column + 0.5} -${size}V${size}`;
  }
  const line = document.createElementNS(space, "path");
  line.setAttribute("d", path);
  picture.append(line);
  return picture;
}

// Several sounds, one above the other, on one time axis and one scale of amplitude.
function drawWaves(figure, named) {
  const known = named.filter(([, wave]) => wave);
  figure.hidden = !known.length;
  if (!known.length) return figure.replaceChildren();
  const seconds = Math.max(...known.map(([, wave]) => secondsOf(wave)));
  const peak = Math.max(...known.map(([, wave]) => peakOf(wave)));
  const axis = make("div", { className: "axis", ariaHidden: "true" });
  const steps = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50];
  const step = steps.find((one) => seconds / one <= 6) || 50;
  for (let at = 0; at <= seconds * 0.96; at += step) {
    const tick = text("span", "", `${+at.toFixed(1)} s`);
    tick.style.left = `${(100 * at) / seconds}%`;
    axis.append(tick);
  }
  const tracks = known.map(([name, wave]) => {
    const length = `${secondsOf(wave).toFixed(1)} s`;
    const label = text("figcaption", "soft", name ? `${name} \u00b7 ${length}` : length);
    return make("div", { className: "track" }, label, track(wave, seconds, peak));
  });
  const shared = known.length > 1 ? "; one time axis and one scale of loudness" : "";
  const names = known.map(
    ([name, wave]) => `${name || "recording"} ${secondsOf(wave).toFixed(1)} s`,
  );
  figure.setAttribute("aria-label", `Waveforms: ${names.join(", ")}${shared}`);
  figure.replaceChildren(...tracks, axis);
}

const drawPair = () =>
  drawWaves($("waves"), [
    ["First", waves.first],
    ["Second", waves.second],
  ]);

async function record(place, button) {
  let stream;
  clear();
  const ticket = tickets[place];
  try {
    stream = await navigator.mediaDevices.getUserMedia({
      audio: {
        channelCount: 1,
        echoCancellation: false,
        noiseSuppression: false,
        autoGainControl: false,
      },
    });
  } catch {
    return fail(new Error("No microphone: allow it, or choose a file."));
  }
  if (tickets[place] !== ticket) return stream.getTracks().forEach((one) => one.stop());
  const recorder = new MediaRecorder(stream);
  const parts = [];
  const begun = Date.now();
  recorders[place] = () => {
    delete recorders[place];
    if (recorder.state === "recording") recorder.stop();
  };
  recorder.ondataavailable = (event) => parts.push(event.data);
  recorder.onstop = () => {
    clearInterval(counter);
    delete recorders[place];
    stream.getTracks().forEach((one) => one.stop());
    if (tickets[place] === ticket)
      put(place, new Blob(parts), `recorded, ${((Date.now() - begun) / 1000).toFixed(1)} s`);
  };
  button.classList.add("rec");
  button.onclick = () => recorder.stop();
  const tick = () => {
    const s = (Date.now() - begun) / 1000;
    button.textContent = `Stop  ${s.toFixed(1)} s`;
    if (s > 30 && recorder.state === "recording") recorder.stop();
  };
  const counter = setInterval(tick, 100);
  recorder.start();
  tick();
}
