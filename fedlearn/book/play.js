// A playground: a federation that trains in the page, without a kernel, a network or a library.
//
// Two halves. `federation` trains and codes messages; it stands by itself, so that its own source becomes a Web Worker. `render` draws.
// What both sides of a message know (draws, schema, bytes) is done as fedlearn does it (rng.py, links.py, servers.py, wire/), so that a
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
    "2c6a0b834d75fe19", "c51fed4a0763928b", "db7ec13950f4862a", "6fe9b308c2d714a5",
      "a2847615fb9e3cd0"].map((row) => [...row].map((c) => parseInt(c, 16)));

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
        for (let i = 0; i < 4; i++) mix(2 * i, 8 + 2 * ((i + 1) % 4), 16 + 2 * ((i + 2) % 4), 24 + 2 * ((i + 3) % 4), s[8 + 2 * i],
          s[9 + 2 * i]);
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
    constructor() { this.data = new Uint8Array(64); this.size = 0; }
    get bytes() { return this.data.subarray(0, this.size); }
    room(more) {
      if (this.size + more > this.data.length) {
        const old = this.data;
        this.data = new Uint8Array(2 * (this.size + more));
        this.data.set(old);
      }
      this.size += more;
      return this.size - more;
    }
    put(bytes) { const at = this.room(bytes.length); this.data.set(bytes, at); }
    number(value, size) { for (let i = 0, at = this.room(size); i < size; i++) this.data[at + i] = value / 2 ** (8 * i); }
    floats(values) { this.put(new Uint8Array(Float32Array.from(values).buffer)); }
    fields(values, width) {
      let shift = 0, held = 0, bits = 0;
      for (; width >= 8; width -= 8, shift += 8) {
        for (let i = 0, at = this.room(values.length); i < values.length; i++) this.data[at + i] = values[i] >>> shift;
      }
      let at = this.room(Math.ceil((values.length * width) / 8));
      for (let i = 0; width && i < values.length; i++) {
        held |= ((values[i] >>> shift) & ((1 << width) - 1)) << bits; bits += width;
        if (bits >= 8) { this.data[at++] = held; held >>>= 8; bits -= 8; }
      }
      if (bits) this.data[at] = held;
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

  // ---- coders, as wire/: one tensor -> bytes -> one tensor ----------------------------------------------------------------------------------
  const how_many = (ratio, n) => Math.min(n, Math.ceil(ratio * n * (1 - 1e-15)));
  const bytes_of = (write) => { const w = new Writer(); write(w); return w.bytes.slice(); };
  function signs(w, x) {
    w.floats([x.reduce((a, v) => a + Math.abs(v), 0) / x.length]);
    w.fields(Uint8Array.from(x, (v) => v < 0), 1);
  }
  const either = (reader, n, size) => Float32Array.from(reader.fields(n, 1), (bit) => (bit ? -size : size));
  function positions(w, index, n) {
    const complement = 2 * index.length > n, chosen = new Set(index);
    const listed = complement ? Array.from({ length: n }, (_, i) => i).filter((i) => !chosen.has(i)) : index;
    const [b, coded] = Writer.rice(listed.map((p, i) => p - (i ? listed[i - 1] : -1) - 1));
    w.number(index.length, 4); w.number(b | (complement << 7), 1);
    w.put(coded.bytes);
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
        const low = x.reduce((a, b) => Math.min(a, b)), exact = (x.reduce((a, b) => Math.max(a, b)) - low) / 255, step = new Float32Array([exact]);
        if (step[0] < exact) new Uint32Array(step.buffer)[0]++;  // rounded up, so that the last level reaches the largest entry
        w.floats([low, step[0]]);
        w.fields(Uint8Array.from(x, (v) => {
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
      encode: (x) => bytes_of((w) => w.fields(Uint8Array.from(x, (v) => v < 0), 1)),
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
  };

  // ---- what travels: a chain of steps, and the words by which the package knows it ---------------------------------------------------
  /** How updates are coded: the coder of each tensor, whether what is lost is remembered, and the link in Python. */
  function link_of(up, ratio) {
    const words = { bits: "Uniform(bits=8)", largest: `TopK(ratio=${ratio}, values='float32')`,
      memory: `TopK(ratio=${ratio}, values='float32')`,
      stc: `TopK(ratio=${ratio}, values='sign')`, votes: "Signs(scaled=False)",
        signs: "Signs(scaled=True)" }[up];
    const coder = { whole: () => dense, bits: CODERS.Uniform, votes: CODERS.Votes, signs: CODERS.Signs, stc: () => CODERS.TopK(ratio,
      true),
      largest: () => CODERS.TopK(ratio, false), memory: () => CODERS.TopK(ratio, false) }[up]();
    const feedback = ["memory", "stc"].includes(up), whole = ["votes", "signs"].includes(up) ? 0 : 2;
    const steps = ["Update()", ...(feedback ? ["Feedback()"] : []), ...(words ? [`Lossy(coder=${words}, whole=${whole})`] : [])];
    return { name: `Uplink(${steps.join(", ")})`, feedback, coders: SHAPES.map(([, shape]) => (shape.length < whole ? dense : coder)) };
  }
  /** By which a message says to which model, method and coder it belongs (wire/message.py, Schema.digest). */
  function digest(link) {
    const shapes = SHAPES.map(([name, shape]) => `('${name}', (${shape.join(", ")}${shape.length < 2 ? "," : ""}))`);
    const quote = link.includes("'") ? '"' : "'";
    return blake2b(`([${shapes.join(", ")}], [], ${quote}${link}${quote})`);
  }

  const CRC = Uint32Array.from({ length: 256 }, (_, c) => { for (let i = 0; i < 8; i++) c = c & 1 ? 0xedb88320 ^ (c >>> 1) : c >>> 1;
    return c; });
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
    [g1, c1, g2, c2].forEach((g, t) => { const rate = lr / batch.length, to = w[t]; for (let i = 0; i < to.length;
      i++) to[i] -= rate * g[i]; });
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
    const finite = (tensors) => tensors.every((tensor) => tensor.every(Number.isFinite));
    let w = first, t = 0, answers = new Map();  // of the last round, to look at

    const accuracy = (net) => {
      let right = 0;
      for (let i = train; i < y.length; i++) right += forward(net, x, i * PIXELS) === y[i];
      return right / (y.length - train);
    };
    /** An update -> sections, and what the other side reads; what is lost stays in `error`. Client -1 is the server. */
    function code(link, update, error, k) {
      const meant = link.feedback ? update.map((u, i) => u.map((v, j) => v + error[i][j])) : update;
      const sections = meant.map((u, i) => link.coders[i].encode(u));
      const sent = sections.map((bytes, i) => link.coders[i].decode(bytes, SIZES[i]));
      if (link.feedback) meant.forEach((u, i) => u.forEach((v, j) => { error[i][j] = v - sent[i][j]; }));
      return { sections, sent };
    }
    /** The steps that a client may have missed, or the whole tensor if that is shorter (servers.py). */
    function replay(since) {
      return w.map((tensor, i) => {
        const missed = [];
        for (let r = since + 1; r < t; r++) missed.push(kept[i].steps.get(r) || new Uint8Array());
        const size = 5 + sum(missed.map((m) => 4 + m.length)), whole = since + 1 < kept[i].from || size >= 4 * tensor.length + 1;
        if (whole) return Uint8Array.from([0, ...dense.encode(tensor)]);
        return bytes_of((o) => { o.number(1, 1); o.number(since, 4); missed.forEach((m) => { o.number(m.length, 4); o.put(m);
          }); });
      });
    }
    function replayed(section, i, copy) {
      const reader = new Reader(section), n = SIZES[i], tensor = copy.w[i].slice();
      if (!reader.number(1)) return reader.floats(n);
      for (let r = reader.number(4) + 1; reader.rest.length; r++) {
        const taken = reader.take(reader.number(4)), coder = steps.coders[i];
        if (r > copy.round && taken.length) coder.decode(taken, n).forEach((v, j) => { tensor[j] += v; });
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
      const learned = net.map((tensor, i) => tensor.map((v, j) => v - start[i][j]));
      const update = liars.has(k) ? learned.map((tensor) => tensor.map((v) => -LIE * v)) : learned;
      const coded = finite(update) ? code(uplink, update, errors[k], k) : { sections: [], sent: [] };  // who diverged sends no tensor
      return { bytes: pack(assemble(coded.sections), 1, up, t, k, mine.length), start, net, learned, update, sent: coded.sent };
    }
    /** What arrived -> the next model. */
    function aggregate(arrivals) {
      const total = sum(arrivals.map((a) => a.samples));
      let next = w.map((tensor) => tensor.slice());
      if (s.up === "signs") next.forEach((tensor, i) => tensor.forEach((v,
        j) => { tensor[j] = v + 0.01 * (sum(arrivals.map((a) => a.update[i][j])) >= 0 ? 1 : -1); }));
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
    const flat = (tensors) => { const all = new Float32Array(sum(SIZES)); tensors.reduce((at, x) => { all.set(x, at);
      return at + x.length; }, 0); return all; };
    const dot = (a, b) => { let total = 0; for (let i = 0; i < a.length; i++) total += a[i] * b[i]; return total; };

    /** What there is to see of a client in the last round: nothing if it was not asked, or diverged. */
    function look(k) {
      const a = answers.get(k);
      const four = [0, 1, 2, 3].map((j) => train + ((4 * t + j) % (y.length - train)));  // test digits, others in each round
      return a?.sent.length ? { client: k, learned: a.learned[0], update: a.update[0], sent: a.sent[0],
        memory: uplink.feedback ? errors[k][0].slice() : null, alone: accuracy(a.net), bytes: a.bytes.byteLength,
        tries: four.map((i) => ({ i, before: forward(a.start, x, i * PIXELS), after: forward(a.net, x, i * PIXELS) })) } : null;
    }

    return {
      look, owned, liars: [...liars], links: [uplink.name, same ? `Replay(${steps.name})` : "Downlink()"],
      held: owned.map((images) => { const counts = new Array(CLASSES).fill(0); images.forEach((i) => counts[y[i]]++); return counts; }),
      shows: owned.map((images) => images[images.length >> 1]),  // one image of each client
      start: accuracy(first),
      /** The next round -> a row for the curve, and what there is to see of it. `focus`: the client that is looked at. */
      round(focus = 0, keep = false) {
        t++;
        const drawn = permutation(K, generator(s.seed, "participants", t)).subarray(0, Math.max(1, Math.floor(s.share * K + 0.5))).sort();
        const ups = new Array(K).fill(0), downs = new Array(K).fill(0), bodies = new Map(), arrivals = [], messages = [];
        answers = new Map();
        for (const k of drawn) {
          const since = same ? Math.max(answered[k] - 1, 0) : 0;
          if (!bodies.has(since)) bodies.set(since, assemble(same ? replay(since) : w.map(dense.encode)));
          const message = pack(bodies.get(since), 0, down, t, k, 0), a = answer(k, message);
          answers.set(k, a); downs[k] = message.byteLength; ups[k] = a.bytes.byteLength;
          if (keep) messages.push({ client: k, down: message, up: a.bytes, sent: a.sent });
          const { samples, sections } = unpack(a.bytes, 1, up, t, k);
          if (sections.length) {
            const update = sections.map((bytes, i) => uplink.coders[i].decode(bytes, SIZES[i]));
            arrivals.push({ k, samples, update });
          }
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
        return { row, drawn: [...drawn], ups, downs, pulls, seen: look(focus), taken, refused: drawn.length - arrivals.length, messages };
      },
    };
  }

  /** What a worker does, or the page in slices where there is none: orders in, rounds out. */
  function host(data, post) {
    let fed = null, run = 0, timer = 0, focus = 0, pace = 0, last = 0, spent = 0, done = 0;
    function go(only) {
      const began = performance.now(), rows = [];
      let shown = null;
      do {
        shown = fed.round(focus);
        rows.push(shown.row);
      } while (!only && !pace && shown.row.round < last && performance.now() - began < 24);
      spent += performance.now() - began; done += rows.length;
      post({ run, rows, shown, speed: (1000 * done) / spent, ended: shown.row.round >= last });
      if (!only && shown.row.round < last) timer = setTimeout(go, Math.max(0, pace ? 1000 / pace - (performance.now() - began) : 0));
    }
    return (order) => {
      if ("focus" in order) focus = order.focus;
      if (order.look) { post({ run, seen: fed.look(focus) }); return; }  // whatever plays goes on
      clearTimeout(timer);
      if ("pace" in order) pace = order.pace;
      if (order.make) {
        fed = make(data, order.make); ({ run } = order); last = order.make.rounds; spent = done = 0;
        post({ run, held: fed.held, shows: fed.shows, liars: fed.liars, start: fed.start });
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
  return { make, host, open, generator, link_of, digest, unpack, SHAPES, SIZES };
}

// ==== what is asked ==================================================================================================================
// Names and values are the address's, and the package's where it has a word for them.
const FIELDS = {
  clients: { name: "Clients", start: 10, from: 2, to: 50 },
  split: { name: "What they hold", start: "iid", options: { iid: "all digits, alike", "dirichlet:1": "uneven shares",
    "dirichlet:0.1": "very uneven shares", "main_class:1": "one digit each" } },
  up: { name: "What they send", start: "whole", options: { whole: "the whole update", bits: "8 bits a number",
    signs: "signs only, as votes", largest: "the largest numbers",
    memory: "the largest, with memory", stc: "signs of the largest, with memory" } },
  ratio: { name: "Share that is sent", start: 0.1, options: { 0.01: "1 %", 0.03: "3 %", 0.1: "10 %", 0.3: "30 %" } },
  down: { name: "What comes down", start: "dense", options: { dense: "the whole network", same: "its change, packed as updates are" } },
  share: { name: "Asked each round", start: 1, options: { 0.1: "a tenth of the clients", 0.3: "three tenths", 0.5: "half", 1: "all" } },
  epochs: { name: "Passes over their digits", start: 1, from: 1, to: 10 },
  lr: { name: "Learning rate", start: 0.1, options: { 0.01: "0.01", 0.03: "0.03", 0.1: "0.1", 0.3: "0.3", 1: "1" } },
  liars: { name: "Liars among them", start: 0, from: 0, to: 10 },
  link: { name: "Each client's line", start: "3G", options: {} },  // the package's, see render
  rounds: { name: "Rounds", start: 40, options: { 20: "20", 40: "40", 80: "80", 160: "160" } },
  seed: { name: "Seed of all that is random", start: 0, from: 0, to: 99 },
  against: { name: "against", start: "rounds", options: { rounds: "rounds", bytes: "bytes", time: "time" } },
};
const OPEN = ["clients", "split", "up", "ratio"];  // the other controls are folded
const FREE = ["seed", "rounds", "against"];  // what a scene's sentences do not depend on
const SPARSE = ["largest", "memory", "stc"];  // what is sent is a share of the entries

// What a scene sets; who is looked at; what it asks and, afterwards, says; and the one thing to change then.
const SCENES = {
  "only-sevens": { title: "A client that has only sevens", set: { split: "main_class:1" }, look: 7, guess: 50,
    ask: "Ten clients, and each has a single digit. Client 7 has seen nothing but sevens. Can the ten teach one network to read all digits, when no image may leave its owner?",
    after: "They can. Look at client 7 up close: training on sevens makes its copy forget much of what it received. The average is better than each of its parts.",
    then: ["Now the same mix for all", { split: "iid" }] },
  "one-in-a-hundred": { title: "One in a hundred", set: { up: "largest", ratio: 0.01 }, look: 0, guess: 80,
    ask: "The network has 2,410 weights, so an update has 2,410 numbers. Every client sends the largest hundredth of them and forgets the rest, every round. What is left of the accuracy?",
    after: "Much is lost for good: the same few weights win each time. What if a client remembers what it did not send, and adds it to its next update?",
    then: ["Now with memory", { up: "memory" }] },
  "signs-vote": { title: "Signs vote", set: { up: "signs", down: "same" }, look: 0, guess: 60,
    ask: "Each client sends one bit for a weight: up or down? The server takes a small step to where the majority points. How good can a network get by show of hands?",
    after: "Nearly as good as with whole numbers, for about one bit a weight instead of 32. Compare it with everybody sending everything.",
    then: ["Now send whole updates", { up: "whole", down: "dense" }] },
  "ask-a-tenth": { title: "Ask a tenth", set: { clients: 30, share: 0.1 }, look: 0, guess: 60,
    ask: "There are thirty clients, and in each round the server asks only three. The other ninety per cent sleep. How much worse does the network get?",
    after: "Hardly worse, and it shakes a little more. Ask everybody, look at the curve against bytes, and see what the other 27 would have cost.",
    then: ["Now ask everybody", { share: 1, against: "bytes" }] },
  "a-slow-link": { title: "A slow link", set: { link: "2G", against: "time" }, look: 0, guess: 80,
    ask: "The clients hang on an old mobile network: 32,000 bits a second. The picture counts time now. How good does the network get, and how long do forty rounds take?",
    after: "The digits learn in a moment; the line is what they wait for. Send only the signs of the largest three per cent, both ways, and remember the rest.",
    then: ["Now 3 %, as signs, both ways", { up: "stc", down: "same", ratio: 0.03 }] },
  "a-liar": { title: "A liar", set: { liars: 1 }, look: 0, guess: 60,
    ask: "One of the ten lies. It trains as the others do, then sends the opposite of what it found, ten times as large. Are nine honest clients stronger than one liar?",
    after: "They are not: in a mean, whoever shouts loudest wins. Give each client one vote for each weight, and nobody can shout.",
    then: ["Now let them vote", { up: "signs" }] },
};
const FIRST = "only-sevens";

/** An address, such as "a-liar&clients=20", -> {scene, s, wrong}; `wrong` says what in it cannot be. */
function parse(address) {
  const [scene, ...changes] = address.split("&"), s = {};
  for (const key in FIELDS) s[key] = FIELDS[key].start;
  const first = (wrong) => ({ scene: FIRST, s: { ...s, ...SCENES[FIRST].set }, wrong: wrong && `${wrong} Here is the first scene instead.` });
  const any = (names) => `one of ${Object.keys(names).join(", ")}`;
  if (!Object.hasOwn(SCENES, scene)) return first(scene && `There is no scene "${scene}" in the address; it is ${any(SCENES)}.`);
  const asked = { ...s, ...SCENES[scene].set };
  for (const change of changes) {
    const [key, text] = change.split("="), field = Object.hasOwn(FIELDS, key) && FIELDS[key],
      value = typeof field.start === "number" ? Number(text) : text;
    const fits = field && (field.options ? Object.hasOwn(field.options,
      value) : Number.isInteger(value) && text !== "" && value >= field.from && value <= field.to);
    if (!fits) return first(`"${change}" in the address cannot be: ${!field ? `what can change is ${any(FIELDS)}` : `${key} is ${
      field.options ? any(field.options) : `a whole number from ${field.from} to ${field.to}`}`}.`);
    asked[key] = value;
  }
  if (asked.liars >= asked.clients) return first(`${asked.liars} liars among ${asked.clients} clients leave nobody honest; there must be fewer liars than clients.`);
  return { scene, s: asked, wrong: "" };
}
function address(scene, s) {
  const start = parse(scene).s;
  return [scene, ...Object.keys(FIELDS).filter((key) => s[key] !== start[key]).map((key) => `${key}=${s[key]}`)].join("&");
}

/** The same in Python, with the package. */
function in_python(s, links, liars) {
  const qualified = (link) => link.replace(/\b(Update|Feedback|Lossy|Replay)\(/g,
    "fl.parts.$1(").replace(/\b(Uniform|TopK|Signs)\(/g, "fl.wire.$1(").replace(/\b(Uplink|Downlink)\(/g, "fl.$1(");
  const [up, down] = links.map(qualified), mean = s.up === "signs" ? "Majority(0.01)" : "fl.Mean()",
    steps = down.match(/^fl\.parts\.Replay\((.*)\)$/);
  return [
    "import fedlearn as fl", ...(liars.length ? ["from fedlearn.book.liars import Lying"] : []),
      ...(s.up === "signs" ? ["from fedlearn.methods.signsgd import Majority"] : []), "from torch import nn", "", "",
    "def network(shape, classes):", "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, classes))", "",
      "",
    `task = fl.tasks.classification("digits", clients=${s.clients}, partition="${s.split}", network=network, seed=${s.seed})`,
    `up = ${up}`, `down = ${steps ? `fl.parts.Replay(${steps[1]})` : down}`,
      `server = ${steps ? `fl.parts.KeptSteps(${steps[1]}, ${mean})` : mean}`,
    `method = ${liars.length ? "Lying" : "fl.Averaging"}("played", optimizer=fl.SGD(${s.lr}), uplink=up, downlink=down, server=server${liars.length ? `, liars=(${liars.join(", ")},), factor=10.0` : ""})`,
    `history = fl.run(method, task, rounds=${s.rounds}, participation=${s.share}, epochs=${s.epochs})`, "history.accuracy[-1]",
  ].join("\n");
}

// ==== what is seen ===================================================================================================================
// The looks of a curve, which it keeps as long as it is there: of the one that plays, and up to three that are kept.
const LINES = [["var(--fl-ink)", "", "M-3,0a3,3 0 1,0 6,0a3,3 0 1,0 -6,0"], ["var(--fl-pink)", "7 4", "M-3,-3h6v6h-6z"],
  ["var(--fl-gold)", "2 3", "M0,-4l4,7h-8z"], ["var(--fl-soft)", "9 3 2 3", "M0,-4l4,4l-4,4l-4,-4z"]];
/** In what two federations differ; axis and line change no round. */
const differences = (s, other) => Object.keys(FIELDS).filter((key) => !["against", "link"].includes(key) && s[key] !== other[key]);
const said = (n) => Math.round(n).toLocaleString("en");
const in_bytes = (n) => (n >= 1e6 ? `${+(n / 1e6).toPrecision(3)} MB` : n >= 1e3 ? `${+(n / 1e3).toPrecision(3)} kB` : `${n} bytes`);
const in_time = (t) => (t >= 172800 ? `${+(t / 86400).toPrecision(2)} days` : t >= 7200 ? `${+(t / 3600).toPrecision(2)} h` : t >= 120 ? `${+(t / 60).toPrecision(2)} min` : `${+t.toPrecision(2)} s`);
const signed = (x) => x.toFixed(2).replace("-", "−");
const hundred = (share) => Math.round(100 * share);

function render({ model, el }) {
  const F = federation(), about = model.get("about"), view = model.get("digits"), links = model.get("links");
  const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength),
    data = [bytes, about.count, about.train, about.mean, about.std];
  FIELDS.link.options = Object.fromEntries(Object.entries(links).map(([name, [up]]) => [name, `${name}: ${said(up / 1000)} kbit/s up`]));
  // Only on the book's own page is the address ours; in a notebook it is somebody else's.
  const ours = document.documentElement.dataset.content_root !== undefined;
  let { scene, s, wrong } = parse(FIRST), rows = [], shown = null, fed = null, kept = [], playing = false, ended = false;
  let guess = 50, guessed = false, focus = 0, speed = 0, units = null, pace = 8, worker = true, waiting = false, look = LINES[0];

  const named = `against-${Math.random()}`;  // a group of radio buttons is the page's, and there may be two widgets
  const field = (key) => {
    const { name, options, from, to } = FIELDS[key];
    const control = options ? `<select name="${key}">${Object.entries(options).map(([value, text]) => `<option value="${value}">${text}</option>`).join("")}</select>`
      : `<span class="fl-range"><input type="range" name="${key}" min="${from}" max="${to}"><output></output></span>`;
    return `<label class="fl-field" data-key="${key}"><span>${name}</span>${control}</label>`;
  };
  el.innerHTML = `<section class="fl-play" aria-label="Playground: a federation that trains in this page">
    <div class="fl-scenes" role="group" aria-label="Scenes">${Object.entries(SCENES).map(([key, { title }], i) => `<button type="button" data-scene="${key}"><b aria-hidden="true">${i + 1}</b> ${title}</button>`).join("")}</div>
    <p class="fl-wrong" role="alert" hidden></p>
    <p class="fl-story"></p>
    <div class="fl-bar">
      <label class="fl-guess"><span>Your guess: of 100 new digits it will read</span><span class="fl-range">
        <input type="range" name="guess" min="0" max="100"><output></output></span></label>
      <span class="fl-buttons fl-then" hidden><button type="button" class="fl-change"></button>
        <button type="button" class="fl-keep">Keep curve</button></span>
      <span class="fl-buttons"><button type="button" class="fl-go"></button>
        <span class="fl-reads" aria-hidden="true"></span><button type="button" class="fl-step">One round</button>
        <button type="button" class="fl-reset">Start again</button></span>
    </div>
    <p class="fl-status" role="status"></p>
    <div class="fl-two">
      <figure><figcaption><b>The federation.</b> <span class="fl-world-said"></span></figcaption><svg class="fl-world" role="img">
        <g class="fl-wires"></g><g class="fl-people"></g></svg></figure>
      <figure><figcaption><b>What it learns.</b> Test digits read correctly, against
        <span class="fl-tabs" role="radiogroup" aria-label="against">${Object.keys(FIELDS.against.options).map((key) => `<label>
          <input type="radio" name="${named}" value="${key}"><span>${key}</span></label>`).join("")}</span></figcaption>
        <svg class="fl-chart" role="img"></svg><ul class="fl-legend"></ul></figure>
    </div>
    <div class="fl-fields" role="group" aria-label="The federation">${OPEN.map(field).join("")}</div>
    <details class="fl-more"><summary>More to change: speed, what comes down, who is asked, liars, the line, ...</summary>
      <div class="fl-fields"><label class="fl-field"><span>Speed</span><select name="pace"><option value="1">1 round a second</option>
      <option value="8">8 rounds a second</option><option value="0">as fast as it goes</option></select>
      </label>${Object.keys(FIELDS).filter((key) => !OPEN.includes(key) && key !== "against").map(field).join("")}</div></details>
    <div class="fl-two">
      <figure><figcaption><b>Up close:</b> <label class="fl-look">client <select name="focus"></select>
        </label> <span class="fl-close-said"></span></figcaption>
        <ul class="fl-tries" aria-label="New digits, and the answers before and after its training"></ul>
        <div class="fl-rows">${[0, 1, 2].map(() => `<div><span></span><canvas width="588" height="48" role="img"></canvas>
          </div>`).join("")}</div>
        <p class="fl-small">The network has 32 detectors (hidden units), each with a weight for each of the 64 pixels: 2,048 of its 2,410 weights.
          Here are ten detectors, as pictures. <i class="fl-plus"></i> grew, <i class="fl-minus"></i> shrank; each row has its own scale.</p></figure>
      <figure><figcaption><b>Who pulls where.</b> <span class="fl-pull-said"></span></figcaption><svg class="fl-pulls" role="img">
        </svg></figure>
    </div>
    <details class="fl-more"><summary>The same in Python</summary><pre tabindex="0"></pre>
      <p class="fl-small">The network begins with the same weights there, and messages are the same bytes. Only who holds what is drawn anew.</p></details>
    <p class="fl-small fl-foot"></p></section>`;
  const $ = (q) => el.querySelector(q), root = $("section"), tabs = [...el.querySelectorAll(".fl-tabs input")];

  // ---- the one who trains: a worker, or this page in slices where a viewer allows none ------------------------------------------------
  let tell = () => {}, stop = () => {};
  function hire() {
    try {
      const source = `const F = (${federation})(); let order; onmessage = ({ data }) => { if (data.open) order = F.host(F.open(...data.open), (m) => postMessage(m)); else order(data); };`;
      const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" })), its = new Worker(url);
      its.onmessage = ({ data: message }) => received(message);
      its.onerror = () => { its.terminate(); alone(); fresh(); };
      its.postMessage({ open: data });
      tell = (order) => its.postMessage(order); stop = () => { its.terminate(); URL.revokeObjectURL(url); };
    } catch { alone(); }
  }
  function alone() {
    worker = false;
    const order = F.host(F.open(...data), received);
    tell = (o) => setTimeout(() => order(o)); stop = () => order({});
  }
  function received(message) {
    if (message.run !== run) return;  // of one that was given up
    if (message.held) { fed = message; report(); }
    else if ("seen" in message) { if (shown) { shown.seen = message.seen; units = null; } }
    else {
      rows.push(...message.rows); shown = message.shown; speed = message.speed; ended = message.ended;
      if (ended) { playing = false; }
      if (ended || !playing) report();
      if (pace === 1 || !playing) travel();
    }
    if (shown?.seen && !units) units = busiest(shown.seen.learned);
    paint();
  }
  let run = 0;
  function fresh() {
    playing = ended = false; rows = []; shown = units = fed = null; run++;
    tell({ make: s, run, focus, pace });
    settle(); report(); paint();
  }
  function tell_address() {
    model.set("scene", address(scene, s)); model.save_changes();
    if (ours) history.replaceState(null, "", `#${address(scene, s)}`);
  }
  /** The units of the first layer that a client's first update moved most: they are shown all along. */
  function busiest(update) {
    const size = (j) => update.subarray(64 * j, 64 * j + 64).reduce((a, v) => a + v * v, 0);
    return [...Array(32).keys()].sort((a, b) => size(b) - size(a)).slice(0, 10).sort((a, b) => a - b);
  }

  // ---- controls -----------------------------------------------------------------------------------------------------------------------
  function settle() {
    for (const key in FIELDS) {
      const input = $(`[data-key="${key}"] :is(input, select)`);
      if (!input) continue;
      input.value = s[key];
      if (input.type === "range") input.nextElementSibling.textContent = s[key];
    }
    $('[name="liars"]').max = Math.min(10, s.clients - 1);
    $('[data-key="ratio"]').hidden = !SPARSE.includes(s.up);
    el.querySelectorAll("[data-scene]").forEach((b) => b.setAttribute("aria-pressed", b.dataset.scene === scene));
    tabs.forEach((tab) => { tab.checked = tab.value === s.against; });
    $('[name="guess"]').value = guess; $(".fl-guess output").textContent = guessed ? guess : "?"; $('[name="pace"]').value = pace;
    $('[name="focus"]').innerHTML = Array.from({ length: s.clients }, (_,
      k) => `<option${k === focus ? " selected" : ""}>${k}</option>`).join("");
    $(".fl-wrong").textContent = wrong; $(".fl-wrong").hidden = !wrong;
    $(".fl-change").textContent = SCENES[scene].then[0];
  }
  function choose(text, move) {
    ({ scene, s, wrong } = parse(text));
    kept = []; look = LINES[0]; focus = Math.min(SCENES[scene].look, s.clients - 1); guess = SCENES[scene].guess; guessed = false;
    fresh();
    if (wrong) tell_address();  // what cannot be does not stay in the address
    if (move) root.scrollIntoView({ block: "start" });
  }
  function change(changes) {
    s = { ...s, ...changes }; wrong = "";
    s.liars = Math.min(s.liars, s.clients - 1); focus = Math.min(focus, s.clients - 1);
    fresh(); tell_address();
  }
  function keep() {
    if (rows.length) kept = [{ s, rows, look, start: fed.start }, ...kept].slice(0, 3);
    rows = []; look = LINES.find((its) => kept.every((curve) => curve.look !== its));
  }
  const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
  function play(on = !playing) {
    if (on && ended) fresh();
    if (on) $(".fl-world").parentElement.scrollIntoView({ block: "nearest", behavior: still() ? "auto" : "smooth" });
    playing = on;
    tell(on ? { play: true, pace } : {});
    if (!on) report();
    paint();
  }
  function look_at(k) {
    focus = k; $('[name="focus"]').value = k;
    tell({ focus, look: true }); people(); paint();
  }
  function report() {
    const last = rows.at(-1), read = last && hundred(last.accuracy);
    $(".fl-go").textContent = playing ? "❚❚ Pause" : ended ? "▶ Play again" : rows.length ? "▶ Go on" : "▶ Play";
    const own = guessed ? `You guessed ${guess}. ` : "";
    $(".fl-status").textContent = playing ? `It trains for ${s.rounds} rounds. ${own}`
      : !last ? "Set your guess, then play." : ended
      ? `${own}After ${last.round} rounds it reads ${read} of 100${kept.length ? `; the curve you kept, ${hundred(kept[0].rows.at(-1).accuracy)}` : ""}.`
      : `Round ${last.round} of ${s.rounds}: it reads ${read} of 100.`;
    $(".fl-then").hidden = !ended; $(".fl-guess").hidden = ended;
    // a scene's words hold for what it sets; seed, rounds and axis are free
    const start = parse(scene).s, plain = Object.keys(FIELDS).every((key) => FREE.includes(key) || s[key] === start[key]);
    const changed = kept.length ? differences(s, kept[0].s) : [];
    $(".fl-story").textContent = plain && !kept.length ? SCENES[scene][ended ? "after" : "ask"]
      : ended ? "Change one thing below and play again: the old curves stay, to compare."
      : !kept.length ? "This is a federation of your own. What will it reach?"
      : changed.length ? `Changed: ${changed.map((key) => FIELDS[key].name.toLowerCase()).join(", ")}. The old curve stays to compare.`
      : "The curve is kept. Change one thing below, then play.";
    $(".fl-change").hidden = kept.length > 0 || !plain;
    const [up, down] = [F.link_of(s.up === "signs" ? "votes" : s.up, s.ratio).name, s.down === "same" ? `Replay(${F.link_of(s.up, s.ratio).name})` : "Downlink()"];
    $("pre").textContent = in_python(s, [up, down], fed ? fed.liars : []);
  }
  root.addEventListener("click", ({ target }) => {
    const button = target.closest("button"), person = target.closest("[data-client]");
    if (person) look_at(+person.dataset.client);
    if (!button) return;
    if (button.dataset.scene) { choose(button.dataset.scene); tell_address(); }
    else if (button.matches(".fl-go")) { play(); report(); }
    else if (button.matches(".fl-step")) { if (ended) fresh(); playing = false; tell({ step: true }); }
    else if (button.matches(".fl-reset")) { kept = []; look = LINES[0]; fresh(); }
    else if (button.matches(".fl-keep")) { keep(); fresh(); $(".fl-go").focus(); }
    else if (button.matches(".fl-change")) { keep(); change(SCENES[scene].then[1]); play(true); report(); $(".fl-go").focus(); }
  });
  root.addEventListener("input", ({ target }) => {
    const { name, value } = target, number = typeof FIELDS[name]?.start === "number";
    if (name === "guess") { guess = +value; guessed = true; $(".fl-guess output").textContent = guess; paint(); }
    else if (name === "pace") { pace = +value; tell({ pace, ...(playing ? { play: true } : {}) }); }
    else if (name === "focus") look_at(+value);
    else if (name === named) { s = { ...s, against: value }; tell_address(); paint(); }
    else if (name === "link") { s = { ...s, link: value }; tell_address(); report(); paint(); }
    else if (FIELDS[name]) { if (rows.length) keep(); change({ [name]: number ? +value : value });
      }  // one thing changed: the old curve stays to compare
  });

  // ---- pictures: drawn once a frame, from the last round that came -------------------------------------------------------------------
  function paint() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; if (el.isConnected) { measure(); wires(); chart(); close(); pulling(); foot(); } });
  }
  let width = {}, shades = [];
  function measure() {  // all that the page knows, before anything is drawn: asked in between, it would be laid out each time
    for (const name of ["world", "chart", "pulls"]) width[name] = $(`.fl-${name}`).clientWidth || 400;
    const style = getComputedStyle(root);
    shades = ["--fl-zero", "--fl-plus", "--fl-minus"].map((name) => (style.getPropertyValue(name).match(/\w\w/g) || []).map((h) => parseInt(h, 16)));
  }
  const place = () => {
    const svg = $(".fl-world"), W = width.world || 400, R = Math.min(W / 2 - 28, 158), size = Math.max(14, Math.min(46,
      (2 * Math.PI * R) / s.clients - 5));
    return { svg, W, R, size, H: 2 * R + size + 10, spot: (k, r) => { const a = (2 * Math.PI * k) / s.clients - Math.PI / 2;
      return [W / 2 + r * Math.cos(a), R + size / 2 + 5 + r * Math.sin(a)]; } };
  };
  /** Image `i` as a picture: dark on no ground; in the dark it is turned round (play.css). */
  const stamps = new Map();
  function stamp(i) {
    if (!stamps.has(i)) {
      const canvas = Object.assign(document.createElement("canvas"), { width: 8, height: 8 }), pen = canvas.getContext("2d");
      const pixels = pen.createImageData(8, 8);
      for (let j = 0; j < 64; j++) pixels.data[4 * j + 3] = (255 * bytes[64 * i + j]) / 16;
      pen.putImageData(pixels, 0, 0);
      stamps.set(i, canvas.toDataURL());
    }
    return stamps.get(i);
  }
  function people() {  // what each client holds: one of its digits, and a bar for each of 0 to 9
    if (!fed) return;
    const { svg, W, H, R, size, spot } = place(), most = Math.max(...fed.held.flat());
    svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
    $(".fl-people").innerHTML = fed.held.map((counts, k) => {
      const [x, y] = spot(k, R), liar = fed.liars.includes(k), bar = (size - 4) / 10;
      const bars = counts.map((n, c) => { const h = Math.max(n && 1, (n / most) * (size - (size > 34 ? 29 : size > 24 ? 14 : 5)));
        return `<rect x="${2 + c * bar}" y="${size - 2 - h}" width="${Math.max(0.6, bar - 0.4)}" height="${h}"/>`; }).join("");
      return `<g data-client="${k}" class="fl-person${k === focus ? " fl-focus" : ""}${liar ? " fl-liar" : ""}" transform="translate(${x - size / 2} ${y - size / 2})"><title>Client ${k}${liar ? ", a liar" : ""}: ${counts.map((n, c) => (n ? `${n} of digit ${c}` : "")).filter(Boolean).join(", ")}</title>
        <rect class="fl-card-edge" width="${size}" height="${size}" rx="4"/>${bars}${size > 34 ? `<image href="${stamp(fed.shows[k])}" x="${size - 26}" y="3" width="23" height="23"/>` : ""}${size > 24 ? `<text x="4" y="11">${k}</text>${liar ? `<text x="3" y="${size > 34 ? 23 : size - 4}">lies</text>` : ""}` : ""}</g>`;
    }).join("");
    dressed = `${W} ${focus} ${run}`;
  }
  let dressed = "";
  function wires() {
    if (fed && dressed !== `${width.world} ${focus} ${run}`) people();
    const { W, R, size, H, spot } = place(), whole = 9687, thick = Math.min(9, 125 / s.clients), last = rows.at(-1),
      middle = [W / 2, R + size / 2 + 5];
    const read = last ? hundred(last.accuracy) : fed ? hundred(fed.start) : 0, arc = (2 * Math.PI * 40 * read) / 100;
    const lines = [];
    if (shown) for (const k of shown.drawn) for (const [kind, n, from, to, side] of [["down", shown.downs[k], 50, R - size / 2 - 5, 1], ["up", shown.ups[k], R - size / 2 - 5, 50, -1]]) {
      const w = Math.max(0.8, (thick * n) / whole), a = (2 * Math.PI * k) / s.clients, off = side * thick * 0.6,
        head = Math.max(4.5, w * 0.85);
      const shift = ([x, y]) => [x + off * Math.cos(a), y + off * Math.sin(a)], [x1, y1] = shift(spot(k, from)),
        [x2, y2] = shift(spot(k, to)), d = Math.sign(to - from);
      const [bx, by] = shift(spot(k, to - d * head * 1.4)), nx = Math.cos(a) * head, ny = Math.sin(a) * head;
      lines.push(`<g class="fl-${kind}"><line x1="${x1}" y1="${y1}" x2="${bx}" y2="${by}" stroke-width="${w}"/>
        <path d="M${bx + nx},${by + ny}L${bx - nx},${by - ny}L${x2},${y2}z"/></g>`);
    }
    const drawn = new Set(shown ? shown.drawn : Array.from({ length: s.clients }, (_, k) => k));
    el.querySelectorAll(".fl-person").forEach((g, k) => g.classList.toggle("fl-asleep", !drawn.has(k)));
    $(".fl-wires").innerHTML = `${lines.join("")}<circle class="fl-server" cx="${middle[0]}" cy="${middle[1]}" r="40"/>
      <circle class="fl-gauge" cx="${middle[0]}" cy="${middle[1]}" r="40" stroke-dasharray="${arc} 999" transform="rotate(-90 ${middle})"/>
      <text class="fl-read" x="${middle[0]}" y="${middle[1] + 2}">${read}</text>
        <text x="${middle[0]}" y="${middle[1] + 18}">of 100</text>`;
    const mean = (list) => { const some = list.filter(Boolean); return some.reduce((a, b) => a + b, 0) / (some.length || 1); };
    const words = shown ? `Round ${last.round}: ${shown.drawn.length} of ${s.clients} clients were asked. Each got ${said(mean(shown.downs))} bytes ` : `A server and ${s.clients} clients with their digits: one of them as a picture, and a bar for each of 0 to 9.`;
    $(".fl-reads").innerHTML = `<b>${read}</b> of 100<br>round ${last ? last.round : 0} of ${s.rounds}`;
    $(".fl-world-said").innerHTML = shown ? `${words}<i class="fl-key fl-key-down"></i> and <span class="fl-word">sent ${said(mean(shown.ups))} <i class="fl-key fl-key-up"></i></span>${shown.refused ? `; ${shown.refused} sent nothing, since their training blew up` : ""}.` : words;
    $(".fl-world").setAttribute("aria-label",
      shown ? `${words}and sent ${said(mean(shown.ups))}. The server's network reads ${read} of 100 digits.` : words);
    $(".fl-world").style.height = `${H}px`;
  }
  /** Messages on their way, as dots: for whoever goes slowly, and does not mind motion. */
  function travel() {
    if (!shown || still()) return;
    const { R, size, spot } = place();
    for (const k of shown.drawn) for (const [kind, from, to, delay] of [["down", 50, R - size / 2, 0], ["up", R - size / 2, 50, 420]]) {
      const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle"), [x1, y1] = spot(k, from), [x2, y2] = spot(k, to);
      dot.setAttribute("r", Math.max(2, Math.sqrt((kind === "up" ? shown.ups : shown.downs)[k] / 9687) * Math.min(7, size / 3)));
      dot.setAttribute("class", `fl-dot fl-dot-${kind}`);
      $(".fl-world").append(dot);
      const moving = dot.animate([{ transform: `translate(${x1}px, ${y1}px)`, opacity: 1 }, { transform: `translate(${x2}px, ${y2}px)`, opacity: 1 }], { duration: 400, delay, easing: "ease-in-out" });
      moving.onfinish = () => dot.remove();
    }
  }

  /** Along which the curve goes: rounds, bytes of all clients, or seconds on the line, as fedlearn.link counts them. */
  function along({ s: its, rows: list }) {
    const [up, down, latency] = links[s.link];
    let total = 0;
    return list.map((row) => {
      if (s.against === "rounds") return row.round;
      total += s.against === "bytes" ? row.up + row.down : latency + (8 * row.down) / row.asked / down + (8 * row.up) / row.asked / up;
      return total;
    });
  }
  function chart() {
    const svg = $(".fl-chart"), W = width.chart, H = 280, left = 34, right = W - 14, top = 12, bottom = H - 40,
      curves = [{ s, rows, look, start: fed?.start }, ...kept], log = s.against !== "rounds";
    const xs = curves.map(along), ends = xs.map((x,
      i) => (i ? x.at(-1) : x.length ? (x.at(-1) * (log ? s.rounds / x.length : 1)) : 0) || 0);
    let low = log ? Math.min(...xs.map((x) => x[0] || Infinity)) : 0, high = log ? Math.max(...ends) : Math.max(s.rounds, ...ends);
    if (!(low < high)) [low, high] = log ? [s.against === "bytes" ? 1e4 : 1, s.against === "bytes" ? 1e7 : 1e3] : [0, s.rounds];
    const X = (v) => left + (right - left) * (log ? Math.log(v / low) / Math.log(high / low) : v / high),
      Y = (a) => bottom - (bottom - top) * a;
    let ticks = [];
    if (!log) for (let v = 0, by = high / 4; v <= high; v += by) ticks.push([v, v ? `${v}` : "0"]);
    else if (s.against === "time") ticks = [[0.1, "0.1 s"], [1, "1 s"], [10, "10 s"], [60, "1 min"], [600, "10 min"], [3600, "1 h"], [36000, "10 h"], [864000, "10 days"]];
    else for (let e = 2; e < 10; e++) ticks.push([10 ** e, in_bytes(10 ** e)]);
    ticks = ticks.filter(([v]) => v >= low && v <= high);
    const axis = ticks.map(([v, text]) => `<line class="fl-grid" x1="${X(v)}" x2="${X(v)}" y1="${top}" y2="${bottom}"/>
      <text x="${X(v)}" y="${bottom + 16}" text-anchor="middle">${text}</text>`);
    for (const a of [0, 0.25, 0.5, 0.75, 1]) axis.push(`<line class="fl-grid" x1="${left}" x2="${right}" y1="${Y(a)}" y2="${Y(a)}"/>
      <text x="${left - 6}" y="${Y(a) + 4}" text-anchor="end">${100 * a}</text>`);
    const names = { rounds: "rounds", bytes: "bytes up and down, all clients together", time: `time on ${s.link}, without computing` };
    axis.push(`<text x="${(left + right) / 2}" y="${H - 6}" text-anchor="middle">${names[s.against]}</text>`);
    const drawn = curves.map(({ rows: list, look: [colour, dash, mark], start }, i) => {
      const points = list.map((row, j) => [X(xs[i][j]), Y(row.accuracy)]), every = Math.max(1,
        Math.ceil(points.length / 14));
      if (!log && start !== undefined) points.unshift([X(0), Y(start)]);
      return points.length && `<g style="color:${colour}">
        <path class="fl-line${i ? "" : " fl-now"}" d="M${points.map((p) => p.map((v) => v.toFixed(1))).join("L")}" stroke-dasharray="${dash}"/>${points.filter((_, j) => j % every === 0 || j === points.length - 1).map(([x, y]) => `<path d="${mark}" transform="translate(${x.toFixed(1)} ${y.toFixed(1)})" fill="currentColor"/>`).join("")}</g>`;
    });
    drawn.reverse();
    svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
    const mark = guessed ? `<line class="fl-guessed" x1="${left}" x2="${right}" y1="${Y(guess / 100)}" y2="${Y(guess / 100)}"/>
      <text class="fl-guess-said" x="${right}" y="${Y(guess / 100) + (guess > 90 ? 14 : -5)}" text-anchor="end">your guess: ${guess}</text>` : "";
    svg.innerHTML = `${axis.join("")}${mark}${drawn.filter(Boolean).join("")}`;
    // each curve by what distinguishes it from the others
    const differ = Object.keys(FIELDS).filter((key) => curves.some((c) => differences(c.s, s).includes(key)));
    const label = (its) => differ.filter((key) => key !== "ratio" || SPARSE.includes(its.up)).map((key) => `${FIELDS[key].name.toLowerCase()}: ${FIELDS[key].options ? FIELDS[key].options[its[key]] : its[key]}`).join("; ");
    const said_of = curves.map(({ s: its, rows: list }, i) => {
      const end = list.at(-1), cost = end && (s.against === "time" ? in_time(xs[i].at(-1)) : in_bytes(list.reduce((a,
        r) => a + r.up + r.down, 0)));
      return [`${i ? "kept" : "now"}${label(its) ? `, ${label(its)}` : ""}:`, end ? `${hundred(end.accuracy)} of 100, ${cost}` : "not played yet"];
    });
    $(".fl-legend").innerHTML = said_of.map(([name, end], i) => `<li style="color:${curves[i].look[0]}">
      <svg width="34" height="12" aria-hidden="true">
      <line class="fl-line" x1="1" x2="33" y1="6" y2="6" stroke-dasharray="${curves[i].look[1]}"/>
      <path d="${curves[i].look[2]}" transform="translate(17 6)" fill="currentColor"/></svg> <span>${name} <b>${end}</b></span></li>`).join("");
    svg.setAttribute("aria-label",
      `Test digits read correctly against ${names[s.against]}. ${guessed ? `Your guess: ${guess} of 100. ` : ""}${said_of.map((x) => x.join(" ")).join(". ")}.`);
  }

  function close() {
    const seen = shown?.seen?.client === focus ? shown.seen : null, canvases = [...el.querySelectorAll(".fl-rows canvas")],
      forgets = !["memory", "stc"].includes(s.up), names = [...el.querySelectorAll(".fl-rows div > span")];
    const [zero, plus, minus] = shades, votes = s.up === "signs";
    const rest = seen && (seen.memory || seen.update.map((v, i) => (votes ? Math.abs(v) : v - seen.sent[i])));
    $(".fl-close-said").textContent = !shown ? "" : !shown.drawn.includes(focus) ? "was not asked in this round."
      : !seen ? "sent nothing that can be shown." : `received a network that reads ${hundred(rows.length > 1 ? rows.at(-2).accuracy : fed.start)} of 100. Trained on its own digits, its copy reads ${hundred(seen.alone)}. Below are four new digits with both answers. It ${fed.liars.includes(focus) ? "lies, and " : ""}sent ${said(seen.bytes)} bytes.`;
    $(".fl-tries").innerHTML = seen ? seen.tries.map(({ i, before, after }) => `<li>
      <svg viewBox="0 0 8 8" role="img" aria-label="A ${bytes[64 * about.count + i]}:"><image href="${stamp(i)}" width="8" height="8"/></svg> ${before} → <b>${after}</b></li>`).join("") : "";
    [seen?.learned, seen?.sent, rest].forEach((values, row) => {
      const canvas = canvases[row], pen = canvas.getContext("2d"), most = values ? values.reduce((a, v) => Math.max(a, Math.abs(v)),
        0) : 0;
      const there = values && units && most > 1e-9, count = there ? values.reduce((a, v) => a + (v !== 0), 0) : 0;
      pen.fillStyle = `rgb(${zero})`;
      pen.fillRect(0, 0, 588, 48);
      for (let u = 0; u < 10 && there; u++) for (let i = 0; i < 64; i++) {
        const v = values[64 * units[u] + i] / most, to = v < 0 ? minus : plus, part = v && 0.2 + 0.8 * Math.sqrt(Math.abs(v)), x = 60 * u + 6 * (i & 7),
          y = 6 * (i >> 3);
        pen.fillStyle = `rgb(${zero.map((z, c) => Math.round(z + part * (to[c] - z)))})`;
        pen.fillRect(x, y, 6, 6);
      }
      names[row].textContent = ["it learned", "it sent", votes ? "it lost the sizes" : forgets ? "it lost" : "it keeps for later"][row] + (seen ? `: ${count ? `${said(count)} of 2,048 weights, up to ${+most.toPrecision(2)}` : "nothing"}` : "");
      canvas.setAttribute("aria-label", `What client ${focus} ${names[row].textContent.slice(3)}, as pictures of ten units`);
    });
  }

  /** For each client, how far its update points where the server then went: the cosine between the two. */
  function pulling() {
    const svg = $(".fl-pulls"), W = width.pulls, H = 232, left = 76, right = W - 8, pulls = shown ? shown.pulls : [],
      most = Math.max(...pulls.map((p) => p.size), 1e-12);
    const X = (k) => left + ((right - left) * (k + 0.5)) / s.clients, Y = (c) => 18 + (1 - c) * (H / 2 - 24), wide = (right - left) / s.clients;
    const lines = [[1, "with it 1"], [0, "across 0"], [-1, "against −1"]].map(([c, text]) => `<line class="fl-grid" x1="${left}" x2="${right}" y1="${Y(c)}" y2="${Y(c)}"/>
      <text x="${left - 8}" y="${Y(c) + 4}" text-anchor="end">${text}</text>`);
    const stems = pulls.map(({ client, cosine, size }) => {
      const own = client === focus, liar = fed.liars.includes(client), named = wide > 22 || own || liar;
      return `<g class="${own ? "fl-own" : ""}${liar ? " fl-lies" : ""}"><line x1="${X(client)}" y1="${Y(0)}" x2="${X(client)}" y2="${Y(cosine)}"/>
        <circle cx="${X(client)}" cy="${Y(cosine)}" r="${Math.max(2, Math.min(9, wide / 2) * Math.sqrt(size / most))}"/>
        ${named ? `<text x="${X(client)}" y="${Y(-1) + 18}" text-anchor="middle">${client}${liar && wide > 30 ? " lies" : ""}</text>` : ""}</g>`;
    });
    const mean = pulls.reduce((a, p) => a + p.cosine, 0) / (pulls.length || 1), mine = pulls.find((p) => p.client === focus);
    const words = `A stem for each client: up if its update points where the server then went, down if it points the other way. ${pulls.length ? `On average ${signed(mean)}${mine ? `, client ${focus}: ${signed(mine.cosine)}` : ""}. Large dots are large updates.` : ""}`;
    svg.setAttribute("viewBox", `0 0 ${W} ${H}`);
    svg.innerHTML = lines.join("") + stems.join("");
    svg.setAttribute("aria-label", words); $(".fl-pull-said").textContent = words;
  }
  function foot() {
    $(".fl-foot").textContent = `${worker ? "It trains in a worker beside this page" : "This viewer allows no worker: it trains in the page itself, in slices, and more slowly"}${speed ? `, ${said(speed)} rounds a second if not held back` : ""}. 1,797 digits are in the page; nothing is sent anywhere.`;
  }

  // ---- begin --------------------------------------------------------------------------------------------------------------------------
  const hash = () => location.hash.slice(1), mine = () => ours && hash() && (Object.hasOwn(SCENES,
    hash().split("&")[0]) || !document.getElementById(hash()));
  const moved = () => { if (mine() && hash() !== address(scene, s)) choose(hash(), true); };
  hire();
  choose(mine() ? hash() : model.get("scene"), mine());
  const asked = () => { if (model.get("scene") !== address(scene, s)) choose(model.get("scene")); };
  model.on("change:scene", asked);
  addEventListener("hashchange", moved);
  const wide = new ResizeObserver(paint), theme = new MutationObserver(paint);
  wide.observe(root); theme.observe(document.documentElement, { attributes: true }); theme.observe(document.body, { attributes: true });
  return () => { stop(); wide.disconnect(); theme.disconnect(); removeEventListener("hashchange", moved);
    model.off("change:scene", asked); };
}

export { federation, parse, in_python };
export default { render };
