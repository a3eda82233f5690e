// A playground: a federation that trains in the page, without a kernel, a network or a library.
//
// Two halves. `federation` trains and codes messages; it stands by itself, so that its own source becomes a Web Worker. `render` draws.
// What both sides of a message know (draws, schema, bytes) is done as fedlearn does it (rng.py, links.py, replay.py, wire/), so that a
// message made here is read by the package, and the other way round: tests/browser/test_playground.py.

// ==== the federation =================================================================================================================
function federation() {
  const HIDDEN = 32, PIXELS = 64, CLASSES = 10, BATCH = 32, LIE = 10;
  const SHAPES = [["1.weight", [HIDDEN, PIXELS]], ["1.bias", [HIDDEN]], ["3.weight", [CLASSES, HIDDEN]], ["3.bias", [CLASSES]]];
  const SIZES = SHAPES.map(([, shape]) => shape.reduce((a, b) => a * b));
  const zeros = () => SIZES.map((n) => new Float32Array(n));
  const sum = (list) => list.reduce((a, b) => a + b, 0);

  // ---- randomness: each choice has a generator of its own, named (seed, purpose, ...); the arithmetic of rng.py and torch -----------
  const IV = [0x6a09e667, 0xf3bcc908, 0xbb67ae85, 0x84caa73b, 0x3c6ef372, 0xfe94f82b, 0xa54ff53a, 0x5f1d36f1,
    0x510e527f, 0xade682d1, 0x9b05688c, 0x2b3e6c1f, 0x1f83d9ab, 0xfb41bd6b, 0x5be0cd19, 0x137e2179];
  const SIGMA = ["0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8", "905724afe1bc683d",
    "2c6a0b834d75fe19", "c51fed4a0763928b", "db7ec13950f4862a", "6fe9b308c2d714a5", "a2847615fb9e3cd0"].map((row) => [...row].map((c) => parseInt(c, 16)));

  /** BLAKE2b with a digest of eight bytes, as [low, high]; numbers of 64 bits are pairs of 32, low first. */
  function blake2b(text) {
    const bytes = new TextEncoder().encode(text), h = new Uint32Array(16), v = new Uint32Array(32), m = new Uint32Array(32);
    for (let i = 0; i < 16; i += 2) { h[i] = IV[i + 1]; h[i + 1] = IV[i]; }
    h[0] ^= 0x01010008;
    const add = (a, low, high) => { const s = v[a] + low; v[a + 1] += high + (s > 0xffffffff); v[a] = s; };
    const turn = (d, a, by) => {  // v[d] = (v[d] ^ v[a]) rotated right
      const low = v[d] ^ v[a], high = v[d + 1] ^ v[a + 1];
      if (by === 32) { v[d] = high; v[d + 1] = low; }
      else if (by === 63) { v[d] = (low << 1) | (high >>> 31); v[d + 1] = (high << 1) | (low >>> 31); }
      else { v[d] = (low >>> by) | (high << (32 - by)); v[d + 1] = (high >>> by) | (low << (32 - by)); }
    };
    const mix = (a, b, c, d, x, y) => {
      add(a, v[b], v[b + 1]); add(a, m[2 * x], m[2 * x + 1]); turn(d, a, 32); add(c, v[d], v[d + 1]); turn(b, c, 24);
      add(a, v[b], v[b + 1]); add(a, m[2 * y], m[2 * y + 1]); turn(d, a, 16); add(c, v[d], v[d + 1]); turn(b, c, 63);
    };
    for (let at = 0; at === 0 || at < bytes.length; at += 128) {
      const block = new Uint8Array(128), end = Math.min(at + 128, bytes.length), words = new DataView(block.buffer);
      block.set(bytes.subarray(at, end));
      for (let i = 0; i < 32; i++) m[i] = words.getUint32(4 * i, true);
      v.set(h);
      for (let i = 0; i < 16; i += 2) { v[16 + i] = IV[i + 1]; v[17 + i] = IV[i]; }
      v[24] ^= end;
      if (end === bytes.length) { v[28] = ~v[28]; v[29] = ~v[29]; }
      for (let r = 0; r < 12; r++) {
        const s = SIGMA[r % 10];
        for (let i = 0; i < 4; i++) mix(2 * i, 8 + 2 * i, 16 + 2 * i, 24 + 2 * i, s[2 * i], s[2 * i + 1]);
        for (let i = 0; i < 4; i++) mix(2 * i, 8 + 2 * ((i + 1) % 4), 16 + 2 * ((i + 2) % 4), 24 + 2 * ((i + 3) % 4), s[8 + 2 * i], s[9 + 2 * i]);
      }
      for (let i = 0; i < 16; i++) h[i] ^= v[i] ^ v[16 + i];
    }
    return [h[0], h[1]];
  }

  /** The generator of this name (a list): the Mersenne twister, whose numbers are torch's. */
  function generator(...name) {
    const [low, high] = blake2b(`(${name.map((x) => (typeof x === "string" ? `'${x}'` : x)).join(", ")})`);
    const s = new Uint32Array(624);
    s[0] = (low >>> 1) | (high << 31);
    for (let i = 1; i < 624; i++) s[i] = Math.imul(s[i - 1] ^ (s[i - 1] >>> 30), 1812433253) + i;
    let at = 624;
    const next = () => {
      if (at === 624) {
        for (let i = 0; i < 624; i++) {
          const y = (s[i] & 0x80000000) | (s[(i + 1) % 624] & 0x7fffffff);
          s[i] = s[(i + 397) % 624] ^ (y >>> 1) ^ (y & 1 ? 0x9908b0df : 0);
        }
        at = 0;
      }
      let y = s[at++];
      y ^= y >>> 11; y ^= (y << 7) & 0x9d2c5680; y ^= (y << 15) & 0xefc60000; y ^= y >>> 18;
      return y >>> 0;
    };
    return { next, uniform: () => (next() & 0xffffff) / 0x1000000 };
  }
  function permutation(n, draws) {
    const order = Uint16Array.from({ length: n }, (_, i) => i);
    for (let i = 0; i < n - 1; i++) {
      const j = i + (draws.next() % (n - i)), kept = order[i];
      order[i] = order[j]; order[j] = kept;
    }
    return order;
  }

  // ---- who holds what: lists of images for each client -------------------------------------------------------------------------------
  /** A gamma variable (Marsaglia and Tsang, 2000); shares of a sum of them are Dirichlet's. */
  function gamma(shape, draws) {
    if (shape < 1) return gamma(shape + 1, draws) * (1 - draws.uniform()) ** (1 / shape);
    const d = shape - 1 / 3, c = 1 / Math.sqrt(9 * d);
    for (;;) {
      const z = Math.sqrt(-2 * Math.log(1 - draws.uniform())) * Math.cos(2 * Math.PI * draws.uniform()), v = (1 + c * z) ** 3;
      if (v > 0 && Math.log(1 - draws.uniform()) < 0.5 * z * z + d - d * v + d * Math.log(v)) return d * v;
    }
  }
  function deal(split, labels, clients, seed) {
    const draws = generator(seed, "partition"), [kind, number] = split.split(":");
    for (;;) {  // anew, until everybody has an image
      const owned = Array.from({ length: clients }, () => []);
      if (kind === "iid") permutation(labels.length, draws).forEach((i, place) => owned[place % clients].push(i));
      for (let c = 0; c < CLASSES && kind !== "iid"; c++) {
        const mine = [...labels.keys()].filter((i) => labels[i] === c), order = permutation(mine.length, draws);
        let shares = [];
        if (kind === "dirichlet") shares = owned.map(() => gamma(+number, draws));
        else shares = owned.map((_, k) => +(clients > CLASSES ? k % CLASSES === c : k === Math.floor((c * clients) / CLASSES)));
        let total = 0, from = 0;
        shares.forEach((share, k) => {
          total += share;
          const to = k === clients - 1 ? mine.length : Math.floor((total / sum(shares)) * mine.length);
          for (; from < to; from++) owned[k].push(mine[order[from]]);
        });
      }
      if (owned.every((images) => images.length)) return owned.map((images) => Uint16Array.from(images).sort());
    }
  }

  // ---- bits, as wire/bits.py: each byte filled from its lowest bit on -----------------------------------------------------------------
  class Writer {
    constructor() { this.bytes = []; }
    number(value, size) { for (let i = 0; i < size; i++) this.bytes.push((value / 2 ** (8 * i)) & 255); }
    floats(values) { const raw = new Uint8Array(Float32Array.from(values).buffer); for (const b of raw) this.bytes.push(b); }
    fields(values, width) {
      for (; width >= 8; width -= 8) { for (const v of values) this.bytes.push(v & 255); values = values.map((v) => v >>> 8); }
      let held = 0, bits = 0;
      for (let i = 0; width && i < values.length; i++) {
        held |= (values[i] & ((1 << width) - 1)) << bits; bits += width;
        if (bits >= 8) { this.bytes.push(held & 255); held >>>= 8; bits -= 8; }
      }
      if (bits) this.bytes.push(held);
    }
    /** Whole numbers as Golomb-Rice codes: all unary parts, then all low bits, with the parameter b of the fewest bytes -> b. */
    static rice(values) {
      const w = new Writer();
      if (!values.length) return [0, w];
      let best = [Infinity];
      for (let b = 0, highest = 33 - Math.clz32(sum(values) / values.length); b <= highest; b++) {
        const unary = sum(values.map((v) => v >>> b)) + values.length, size = Math.ceil(unary / 8) + Math.ceil((values.length * b) / 8);
        if (size < best[0]) best = [size, b, unary];
      }
      const [, b, unary] = best, bits = new Uint8Array(unary);
      values.reduce((at, v) => { bits[at + (v >>> b)] = 1; return at + (v >>> b) + 1; }, 0);
      w.fields(bits, 1); w.fields(values, b);
      return [b, w];
    }
  }
  class Reader {
    constructor(bytes) { this.rest = bytes; }
    take(size) {
      if (size > this.rest.length) throw new Error("A coded section ends too early.");
      const part = this.rest.subarray(0, size);
      this.rest = this.rest.subarray(size);
      return part;
    }
    number(size) { return this.take(size).reduceRight((value, byte) => value * 256 + byte, 0); }
    floats(count) { return new Float32Array(this.take(4 * count).slice().buffer); }
    fields(count, width) {
      const values = new Int32Array(count);
      let shift = 0, held = 0, bits = 0, at = 0;
      for (; width >= 8; width -= 8, shift += 8) this.take(count).forEach((b, i) => { values[i] |= b << shift; });
      const data = this.take(Math.ceil((count * width) / 8));
      for (let i = 0; width && i < count; i++) {
        if (bits < width) { held |= data[at++] << bits; bits += 8; }
        values[i] |= (held & ((1 << width) - 1)) << shift; held >>>= width; bits -= width;
      }
      return values;
    }
    rice(count, b) {
      const values = new Int32Array(count);
      let at = 0, ran = 0, found = 0;
      for (; found < count; at++) {
        if (at >= 8 * this.rest.length) throw new Error("A list of positions ends too early.");
        if ((this.rest[at >> 3] >> (at & 7)) & 1) { values[found++] = ran << b; ran = 0; } else ran++;
      }
      this.take(Math.ceil(at / 8));
      this.fields(count, b).forEach((low, i) => { values[i] |= low; });
      return values;
    }
  }

  // ---- coders, as wire/: one tensor -> bytes -> one tensor. `draws` is for those whose two ends share randomness ---------------------
  const how_many = (ratio, n) => Math.min(n, Math.ceil(ratio * n * (1 - 1e-15)));
  const bytes_of = (write) => { const w = new Writer(); write(w); return Uint8Array.from(w.bytes); };
  function signs(w, x) {
    w.floats([x.reduce((a, v) => a + Math.abs(v), 0) / x.length]);
    w.fields(Array.from(x, (v) => +(v < 0)), 1);
  }
  const either = (reader, n, size) => Float32Array.from(reader.fields(n, 1), (bit) => (bit ? -size : size));
  function positions(w, index, n) {
    const complement = 2 * index.length > n, chosen = new Set(index);
    const listed = complement ? Array.from({ length: n }, (_, i) => i).filter((i) => !chosen.has(i)) : index;
    const [b, coded] = Writer.rice(listed.map((p, i) => p - (i ? listed[i - 1] : -1) - 1));
    w.number(index.length, 4); w.number(b | (complement << 7), 1);
    w.bytes.push(...coded.bytes);
  }
  function read_positions(reader, n) {
    const count = reader.number(4), head = reader.number(1), complement = head >> 7;
    const gaps = reader.rice(complement ? n - count : count, head & 127), listed = [];
    gaps.reduce((at, gap) => { listed.push(at + gap + 1); return at + gap + 1; }, -1);
    const chosen = new Set(listed);
    return complement ? Array.from({ length: n }, (_, i) => i).filter((i) => !chosen.has(i)) : listed;
  }
  /** The positions of the largest magnitudes, ascending; among equal ones the first. */
  function largest(x, count) {
    const edge = x.map(Math.abs).sort()[x.length - count];
    let ties = count - x.reduce((c, v) => c + (Math.abs(v) > edge), 0);
    const index = [];
    x.forEach((v, i) => { if (Math.abs(v) > edge || (Math.abs(v) === edge && ties-- > 0)) index.push(i); });
    return index;
  }
  const scattered = (n, index, values) => { const x = new Float32Array(n); index.forEach((i, j) => { x[i] = values[j]; }); return x; };

  const dense = {
    encode: (x) => new Uint8Array(x.slice().buffer),
    decode: (bytes, n) => new Reader(bytes).floats(n),
  };
  const CODERS = {
    Uniform: () => ({
      encode: (x) => bytes_of((w) => {
        const low = Math.min(...x), exact = (Math.max(...x) - low) / 255, step = new Float32Array([exact]);
        if (step[0] < exact) new Uint32Array(step.buffer)[0]++;  // rounded up, so that the last level reaches the largest entry
        w.floats([low, step[0]]);
        w.fields(Array.from(x, (v) => {
          const level = (v - low) / (step[0] || 1), down = Math.floor(level), over = level - down;
          return down + (over > 0.5 || (over === 0.5 && down % 2));  // to the even one, as numpy rounds
        }), 8);
      }),
      decode: (bytes, n) => {
        const reader = new Reader(bytes), [low, step] = reader.floats(2);
        return Float32Array.from(reader.fields(n, 8), (level) => low + level * step);
      },
    }),
    Votes: () => ({
      encode: (x) => bytes_of((w) => w.fields(Array.from(x, (v) => +(v < 0)), 1)),
      decode: (bytes, n) => either(new Reader(bytes), n, 1),
    }),
    Signs: () => ({
      encode: (x) => bytes_of((w) => signs(w, x)),
      decode: (bytes, n) => { const reader = new Reader(bytes); return either(reader, n, reader.floats(1)[0]); },
    }),
    TopK: (ratio, ternary) => ({
      encode: (x) => bytes_of((w) => {
        const index = largest(x, how_many(ratio, x.length)), kept = index.map((i) => x[i]);
        positions(w, index, x.length);
        if (ternary) signs(w, kept); else w.floats(kept);
      }),
      decode: (bytes, n) => {
        const reader = new Reader(bytes), index = read_positions(reader, n), count = index.length;
        return scattered(n, index, ternary ? either(reader, count, reader.floats(1)[0]) : reader.floats(count));
      },
    }),
    RandomK: (ratio) => {
      const index = (n, draws) => permutation(n, draws).subarray(0, how_many(ratio, n));
      return {
        shared: true,
        encode: (x, draws) => bytes_of((w) => w.floats(Array.from(index(x.length, draws), (i) => x[i]))),
        decode: (bytes, n, draws) => scattered(n, index(n, draws), new Reader(bytes).floats(how_many(ratio, n))),
      };
    },
  };

  // ---- what travels: a chain of steps, and the words by which the package knows it ---------------------------------------------------
  /** How updates are coded: the coder of each tensor, whether what is lost is remembered, and the link in Python. */
  function link_of(up, ratio) {
    const words = { bits: "Uniform(bits=8)", largest: `TopK(ratio=${ratio}, values='float32')`, memory: `TopK(ratio=${ratio}, values='float32')`,
      stc: `TopK(ratio=${ratio}, values='sign')`, random: `RandomK(ratio=${ratio}, unbiased=False)`, votes: "Signs(scaled=False)", signs: "Signs(scaled=True)" }[up];
    const coder = { whole: () => dense, bits: CODERS.Uniform, votes: CODERS.Votes, signs: CODERS.Signs, stc: () => CODERS.TopK(ratio, true),
      largest: () => CODERS.TopK(ratio, false), memory: () => CODERS.TopK(ratio, false), random: () => CODERS.RandomK(ratio) }[up]();
    const feedback = ["memory", "stc", "random"].includes(up), whole = ["votes", "signs"].includes(up) ? 0 : 2;
    const steps = ["Update()", ...(feedback ? ["Feedback()"] : []), ...(words ? [`Lossy(coder=${words}, whole=${whole})`] : [])];
    return { name: `Uplink(${steps.join(", ")})`, feedback, coders: SHAPES.map(([, shape]) => (shape.length < whole ? dense : coder)) };
  }
  /** By which a message says to which model, method and coder it belongs (wire/message.py, Schema.digest). */
  function digest(link) {
    const shapes = SHAPES.map(([name, shape]) => `('${name}', (${shape.join(", ")}${shape.length < 2 ? "," : ""}))`);
    const quote = link.includes("'") ? '"' : "'";
    return blake2b(`([${shapes.join(", ")}], [], ${quote}${link}${quote})`);
  }

  const CRC = Uint32Array.from({ length: 256 }, (_, c) => { for (let i = 0; i < 8; i++) c = c & 1 ? 0xedb88320 ^ (c >>> 1) : c >>> 1; return c; });
  function crc32(bytes, before = 0) {
    let c = ~before;
    for (let i = 0; i < bytes.length; i++) c = CRC[(c ^ bytes[i]) & 255] ^ (c >>> 8);
    return ~c >>> 0;
  }
  /** Sections, one for each tensor or none at all, as the body of a message and its checksum. */
  function assemble(sections) {
    const head = bytes_of((w) => { w.number(sections.length ? 0xf0 : 0, 1); sections.forEach((s) => w.number(s.length, 4)); });
    const body = new Uint8Array(head.length + sum(sections.map((s) => s.length)));
    body.set(head);
    sections.reduce((at, s) => { body.set(s, at); return at + s.length; }, head.length);
    return { body, crc: crc32(body) };
  }
  function pack({ body, crc }, kind, schema, round, client, samples) {
    const data = new Uint8Array(30 + body.length), view = new DataView(data.buffer);
    data.set([0x46, 0x4c, 0x52, 0x4e, 2, kind]);  // "FLRN", version
    [...schema, round, client, samples].forEach((value, i) => view.setUint32(6 + 4 * i, value, true));
    data.set(body, 26);
    view.setUint32(26 + body.length, crc32(data.subarray(0, 26), crc), true);
    return data;
  }
  /** A message -> {samples, sections}; an error for anything but the message expected. */
  function unpack(data, kind, schema, round, client) {
    const view = new DataView(data.buffer, data.byteOffset), body = data.subarray(26, data.length - 4);
    if (view.getUint32(data.length - 4, true) !== crc32(data.subarray(0, 26), crc32(body))) throw new Error("The checksum does not fit.");
    const head = [data[4], data[5], ...[0, 1, 2, 3].map((i) => view.getUint32(6 + 4 * i, true))];
    if ([2, kind, ...schema, round, client].some((v, i) => v !== head[i])) throw new Error("The message is not the one expected.");
    const reader = new Reader(body), count = reader.number(1) ? SHAPES.length : 0;
    const lengths = Array.from({ length: count }, () => reader.number(4));
    return { samples: view.getUint32(22, true), sections: lengths.map((n) => reader.take(n)) };
  }

  // ---- the network: 64 pixels, 32 hidden units, 10 classes ---------------------------------------------------------------------------
  function initial(seed) {
    const draws = generator(seed, "initial weights"), w = zeros();
    w.forEach((tensor, i) => {
      const bound = Math.fround(1 / Math.sqrt(i < 2 ? PIXELS : HIDDEN));
      for (let j = 0; j < tensor.length; j++) tensor[j] = draws.uniform() * (2 * bound) - bound;
    });
    return w;
  }
  const hidden = new Float64Array(HIDDEN), scores = new Float64Array(CLASSES);
  function forward([w1, b1, w2, b2], x, at) {
    for (let j = 0; j < HIDDEN; j += 4) {  // four units at once: a pixel is read once for them, and no sum waits for another
      const p = j * PIXELS, q = p + PIXELS, r = q + PIXELS, u = r + PIXELS;
      let s0 = b1[j], s1 = b1[j + 1], s2 = b1[j + 2], s3 = b1[j + 3];
      for (let i = 0; i < PIXELS; i++) {
        const pixel = x[at + i];
        s0 += w1[p + i] * pixel; s1 += w1[q + i] * pixel; s2 += w1[r + i] * pixel; s3 += w1[u + i] * pixel;
      }
      hidden[j] = Math.max(s0, 0); hidden[j + 1] = Math.max(s1, 0); hidden[j + 2] = Math.max(s2, 0); hidden[j + 3] = Math.max(s3, 0);
    }
    let best = 0;
    for (let c = 0, p = 0; c < CLASSES; c++) {
      let s = b2[c];
      for (let j = 0; j < HIDDEN; j++) s += w2[p++] * hidden[j];
      scores[c] = s;
      if (s > scores[best]) best = c;
    }
    return best;
  }
  /** One step of SGD on the mean cross-entropy of a batch, in place. */
  function step(w, x, y, batch, lr) {
    const [g1, c1, g2, c2] = SIZES.map((n) => new Float64Array(n)), w2 = w[2];
    for (const image of batch) {
      const at = image * PIXELS, top = scores[forward(w, x, at)];
      let total = 0;
      for (let c = 0; c < CLASSES; c++) total += scores[c] = Math.exp(scores[c] - top);
      for (let c = 0; c < CLASSES; c++) {
        const d = scores[c] = scores[c] / total - (c === y[image]);
        c2[c] += d;
        for (let j = 0; j < HIDDEN; j++) g2[c * HIDDEN + j] += d * hidden[j];
      }
      for (let j = 0; j < HIDDEN; j++) {
        if (!(hidden[j] > 0)) continue;
        let d = 0;
        for (let c = 0; c < CLASSES; c++) d += scores[c] * w2[c * HIDDEN + j];
        c1[j] += d;
        for (let i = 0, p = j * PIXELS; i < PIXELS; i++) g1[p++] += d * x[at + i];
      }
    }
    [g1, c1, g2, c2].forEach((g, t) => { const rate = lr / batch.length, to = w[t]; for (let i = 0; i < to.length; i++) to[i] -= rate * g[i]; });
  }

  // ---- a federation: rounds of send, train, read, aggregate --------------------------------------------------------------------------
  /** `data`: {x: normalised pixels, y: labels, train: how many of them, from the front, are for training}. `s`: the settings. */
  function make(data, s) {
    const { x, y, train } = data, K = s.clients, same = s.down === "same";
    const owned = s.owned || deal(s.split, y.subarray(0, train), K, s.seed);
    const uplink = link_of(s.up === "signs" ? "votes" : s.up, s.ratio), steps = link_of(s.up, s.ratio);  // those of the server's steps
    const up = digest(uplink.name), down = digest(same ? `Replay(${steps.name})` : "Downlink()"), first = initial(s.seed);
    const liars = new Set(permutation(K, generator(s.seed, "liars")).subarray(0, s.liars));
    const errors = [...owned.map(() => zeros()), zeros()];  // what each client, and the server, did not send
    const copies = owned.map(() => ({ w: first, round: 0 }));  // the models that clients keep where steps come down
    const kept = SHAPES.map(() => ({ from: 1, steps: new Map() })), answered = new Array(K).fill(0);
    const shared = (coder, t, k, i) => (coder.shared ? generator(s.seed, "shared coder", t, k, SHAPES[i][0]) : null);
    const finite = (tensors) => tensors.every((tensor) => tensor.every(Number.isFinite));
    let w = first, t = 0;

    const accuracy = (net) => {
      let right = 0;
      for (let i = train; i < y.length; i++) right += forward(net, x, i * PIXELS) === y[i];
      return right / (y.length - train);
    };
    /** An update -> sections, and what the other side reads; what is lost stays in `error`. Client -1 is the server. */
    function code(link, update, error, k) {
      const meant = link.feedback ? update.map((u, i) => u.map((v, j) => v + error[i][j])) : update;
      const sections = meant.map((u, i) => link.coders[i].encode(u, shared(link.coders[i], t, k, i)));
      const sent = sections.map((bytes, i) => link.coders[i].decode(bytes, SIZES[i], shared(link.coders[i], t, k, i)));
      if (link.feedback) meant.forEach((u, i) => u.forEach((v, j) => { error[i][j] = v - sent[i][j]; }));
      return { sections, sent };
    }
    /** The steps that a client may have missed, or the whole tensor if that is shorter (replay.py). */
    function replay(since) {
      return w.map((tensor, i) => {
        const missed = [];
        for (let r = since + 1; r < t; r++) missed.push(kept[i].steps.get(r) || new Uint8Array());
        const size = 5 + sum(missed.map((m) => 4 + m.length)), whole = since + 1 < kept[i].from || size >= 4 * tensor.length + 1;
        if (whole) return Uint8Array.from([0, ...dense.encode(tensor)]);
        return bytes_of((o) => { o.number(1, 1); o.number(since, 4); missed.forEach((m) => { o.number(m.length, 4); o.bytes.push(...m); }); });
      });
    }
    function replayed(section, i, copy) {
      const reader = new Reader(section), n = SIZES[i], tensor = copy.w[i].slice();
      if (!reader.number(1)) return reader.floats(n);
      for (let r = reader.number(4) + 1; reader.rest.length; r++) {
        const taken = reader.take(reader.number(4)), coder = steps.coders[i];
        if (r > copy.round && taken.length) coder.decode(taken, n, shared(coder, r, -1, i)).forEach((v, j) => { tensor[j] += v; });
      }
      return tensor;
    }
    /** One client's night: bytes in, bytes out. */
    function answer(k, message) {
      const { sections } = unpack(message, 0, down, t, k);
      const start = sections.map((bytes, i) => (same ? replayed(bytes, i, copies[k]) : dense.decode(bytes, SIZES[i])));
      copies[k] = { w: start, round: t - 1 };
      const net = start.map((tensor) => tensor.slice()), shuffle = generator(s.seed, "shuffle", t, k), mine = owned[k];
      for (let e = 0; e < s.epochs; e++) {
        const order = permutation(mine.length, shuffle);
        for (let at = 0; at < mine.length; at += BATCH) step(net, x, y, Array.from(order.subarray(at, at + BATCH), (i) => mine[i]), s.lr);
      }
      const update = net.map((tensor, i) => tensor.map((v, j) => (v - start[i][j]) * (liars.has(k) ? -LIE : 1)));
      const coded = finite(update) ? code(uplink, update, errors[k], k) : { sections: [], sent: [] };  // who diverged sends no tensor
      return { bytes: pack(assemble(coded.sections), 1, up, t, k, mine.length), net, update, sent: coded.sent };
    }
    /** What arrived -> the next model. */
    function aggregate(arrivals) {
      const total = sum(arrivals.map((a) => a.samples));
      let next = w.map((tensor) => tensor.slice());
      if (s.up === "signs") next.forEach((tensor, i) => tensor.forEach((v, j) => { tensor[j] = v + 0.01 * (sum(arrivals.map((a) => a.update[i][j])) >= 0 ? 1 : -1); }));
      else arrivals.forEach((a) => next.forEach((tensor, i) => a.update[i].forEach((u, j) => { tensor[j] += (a.samples / total) * u; })));
      if (!same || !finite(next)) return next;
      const { sections, sent } = code(steps, next.map((tensor, i) => tensor.map((v, j) => v - w[i][j])), errors[K], -1);
      const known = Math.min(...answered.map((r) => Math.max(r - 1, 0)));
      sections.forEach((bytes, i) => {  // as long as some client may need them, and they are shorter than the model
        const { steps: list } = kept[i];
        list.set(t, bytes);
        const rounds = [...list.keys()].filter((r) => r >= kept[i].from);
        let size = sum(rounds.map((r) => list.get(r).length));
        while (rounds.length && (rounds[0] <= known || size > 4 * SIZES[i])) {
          size -= list.get(rounds[0]).length; list.delete(rounds[0]); kept[i].from = rounds.shift() + 1;
        }
      });
      return w.map((tensor, i) => tensor.map((v, j) => v + sent[i][j]));
    }
    const flat = (tensors) => { const all = new Float32Array(sum(SIZES)); tensors.reduce((at, x) => { all.set(x, at); return at + x.length; }, 0); return all; };
    const dot = (a, b) => { let total = 0; for (let i = 0; i < a.length; i++) total += a[i] * b[i]; return total; };

    return {
      owned, liars: [...liars], links: [uplink.name, same ? `Replay(${steps.name})` : "Downlink()"],
      held: owned.map((images) => { const counts = new Array(CLASSES).fill(0); images.forEach((i) => counts[y[i]]++); return counts; }),
      start: accuracy(first), get weights() { return w; },
      /** The next round -> a row for the curve, and what there is to see of it. `focus`: the client that is looked at. */
      round(focus = 0, keep = false) {
        t++;
        const drawn = permutation(K, generator(s.seed, "participants", t)).subarray(0, Math.max(1, Math.floor(s.share * K + 0.5))).sort();
        const ups = new Array(K).fill(0), downs = new Array(K).fill(0), bodies = new Map(), arrivals = [], messages = [];
        let seen = null;
        for (const k of drawn) {
          const since = same ? Math.max(answered[k] - 1, 0) : 0;
          if (!bodies.has(since)) bodies.set(since, assemble(same ? replay(since) : w.map(dense.encode)));
          const message = pack(bodies.get(since), 0, down, t, k, 0), before = k === focus && flat(errors[k]), a = answer(k, message);
          downs[k] = message.byteLength; ups[k] = a.bytes.byteLength;
          if (keep) messages.push({ client: k, down: message, up: a.bytes, sent: a.sent });
          const { samples, sections } = unpack(a.bytes, 1, up, t, k);
          if (sections.length) {
            const update = sections.map((bytes, i) => uplink.coders[i].decode(bytes, SIZES[i], shared(uplink.coders[i], t, k, i)));
            arrivals.push({ k, samples, update });
          }
          if (k === focus && sections.length) seen = { client: k, update: a.update[0], sent: a.sent[0], owed: uplink.feedback ? before.slice(0, SIZES[0]) : null,
            memory: uplink.feedback ? errors[k][0].slice() : null, alone: accuracy(a.net), bytes: a.bytes.byteLength };
        }
        for (const { k } of arrivals) answered[k] = t;
        const next = arrivals.length ? aggregate(arrivals) : w, taken = finite(next);
        const move = flat(next.map((tensor, i) => tensor.map((v, j) => v - w[i][j]))), length = Math.sqrt(dot(move, move));
        const pulls = arrivals.map(({ k, update }) => {
          const u = flat(update), size = Math.sqrt(dot(u, u));
          return { client: k, cosine: dot(u, move) / (size * length) || 0, size };
        });
        if (taken) w = next;  // a model from which nobody could go on is not taken
        const row = { round: t, accuracy: accuracy(w), up: sum(ups), down: sum(downs), asked: drawn.length };
        return { row, drawn: [...drawn], ups, downs, pulls, seen, taken, refused: drawn.length - arrivals.length, messages };
      },
    };
  }

  /** What a worker does, or the page in slices where there is none: orders in, rounds out. */
  function host(data, post) {
    let fed = null, timer = 0, focus = 0, pace = 0, last = 0, spent = 0, done = 0;
    function go(only) {
      const began = performance.now(), rows = [];
      let shown = null;
      do {
        shown = fed.round(focus);
        rows.push(shown.row);
      } while (!only && !pace && shown.row.round < last && performance.now() - began < 24);
      spent += performance.now() - began; done += rows.length;
      post({ rows, shown, speed: (1000 * done) / spent, ended: shown.row.round >= last });
      if (!only && shown.row.round < last) timer = setTimeout(go, Math.max(0, pace ? 1000 / pace - (performance.now() - began) : 0));
    }
    return (order) => {
      clearTimeout(timer);
      if ("focus" in order) focus = order.focus;
      if ("pace" in order) pace = order.pace;
      if (order.make) {
        fed = make(data, order.make); last = order.make.rounds; spent = done = 0;
        post({ held: fed.held, liars: fed.liars, start: fed.start });
      }
      if (order.play) go(false); else if (order.step) go(true);
    };
  }

  /** The bytes that travel in the page -> {x, y, train}; pixels are normalised as the package does. */
  function open(bytes, count, train, mean, std) {
    const x = new Float32Array(count * PIXELS);
    for (let i = 0; i < x.length; i++) x[i] = Math.fround(bytes[i] - mean) / Math.fround(std);
    return { x, y: bytes.slice(count * PIXELS), train };
  }
  return { make, host, open, generator, permutation, blake2b, link_of, digest, unpack, CODERS, dense, SHAPES, SIZES };
}

export { federation };
