// Compares two recordings by a model of `likeness export`, without Python.
//
//     npm install --ignore-scripts
//     node compare.mjs voices.onnx a.wav b.wav
//
// It prints the score as one line of JSON. In a browser the same works with onnxruntime-web:
// replace the import, and read the files by fetch().

import { readFileSync } from "node:fs";
import * as ort from "onnxruntime-node";

const RATE_HZ = 16000;

/** Returns the samples in [-1, 1] of a WAV file of 16 bits, the mean of its channels. */
function readWav(path) {
  const bytes = readFileSync(path);
  if (bytes.toString("latin1", 0, 4) !== "RIFF" || bytes.toString("latin1", 8, 12) !== "WAVE") {
    throw new Error(`${path} is no WAV file`);
  }
  let format = null;
  for (let start = 12; start + 8 <= bytes.length; ) {
    const name = bytes.toString("latin1", start, start + 4);
    const size = bytes.readUInt32LE(start + 4);
    const body = start + 8;
    if (name === "fmt ") {
      format = {
        channels: bytes.readUInt16LE(body + 2),
        rateHz: bytes.readUInt32LE(body + 4),
        bits: bytes.readUInt16LE(body + 14),
      };
    } else if (name === "data") {
      if (format === null || format.rateHz !== RATE_HZ || format.bits !== 16) {
        throw new Error(`${path} is no WAV file of 16 bits at ${RATE_HZ} Hz; convert it first`);
      }
      const count = Math.floor(Math.min(size, bytes.length - body) / 2 / format.channels);
      const samples = new Float32Array(count);
      for (let i = 0; i < count; i++) {
        for (let c = 0; c < format.channels; c++) {
          samples[i] += bytes.readInt16LE(body + 2 * (i * format.channels + c)) / 32768;
        }
        samples[i] /= format.channels;
      }
      return samples;
    }
    start = body + size + (size % 2); // chunks begin at even places
  }
  throw new Error(`${path} has no samples`);
}

/** Returns the raw embedding of a recording. */
async function embed(session, samples) {
  const waves = new ort.Tensor("float32", samples, [1, samples.length]);
  const { embeddings } = await session.run({ waves });
  return embeddings.data;
}

/** Returns the cosine of two embeddings. */
function cosine(x, y) {
  const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
  const [a, b] = [Array.from(x), Array.from(y)]; // sums in 64 bits
  return dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
}

const [model, first, second] = process.argv.slice(2);
if (second === undefined) {
  console.error("usage: node compare.mjs MODEL.onnx FIRST.wav SECOND.wav");
  process.exit(2);
}
try {
  const session = await ort.InferenceSession.create(model);
  const x = await embed(session, readWav(first));
  const y = await embed(session, readWav(second));
  console.log(JSON.stringify({ cosine: cosine(x, y), dim: x.length }));
} catch (error) {
  console.error(error.message);
  process.exit(1);
}
