// Unpacks zlib data at once, where the browser's own unpacking (which is quicker) would come too late: before printing.
// RFC 1950 and 1951; checksums are not compared, since the page's policy knows the hash of what comes out.
"use strict";
const inflate = (() => {
  const ORDER = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
  const LENGTH = [], DISTANCE = []; // symbol -> [base, number of extra bits]
  for (let i = 0, base = 3; i < 28; i += 1) {
    const extra = i < 8 ? 0 : (i >> 2) - 1;
    LENGTH.push([base, extra]);
    base += 1 << extra;
  }
  LENGTH.push([258, 0]);
  for (let i = 0, base = 1; i < 30; i += 1) {
    const extra = i < 4 ? 0 : (i >> 1) - 1;
    DISTANCE.push([base, extra]);
    base += 1 << extra;
  }

  function codes(lengths) { // canonical Huffman code: how many codes of each length, and their symbols in order
    const counts = new Uint16Array(16);
    for (const length of lengths) counts[length] += 1;
    counts[0] = 0;
    const next = new Uint16Array(16);
    for (let length = 1; length < 16; length += 1) next[length] = next[length - 1] + counts[length - 1];
    const symbols = new Uint16Array(lengths.length);
    lengths.forEach((length, symbol) => { if (length) symbols[next[length]++] = symbol; });
    return {counts, symbols};
  }

  return (bytes) => {
    let at = 2, held = 0, numHeld = 0; // after the two bytes of zlib's header
    let out = new Uint8Array(bytes.length * 4), size = 0;

    function bits(count) {
      while (numHeld < count) { held |= bytes[at++] << numHeld; numHeld += 8; }
      const value = held & ((1 << count) - 1);
      held >>>= count;
      numHeld -= count;
      return value;
    }

    function symbol({counts, symbols}) {
      let code = 0, first = 0, place = 0;
      for (let length = 1; length < 16; length += 1) {
        code |= bits(1);
        const count = counts[length];
        if (code - first < count) return symbols[place + code - first];
        place += count;
        first = (first + count) << 1;
        code <<= 1;
      }
      throw new Error("damaged");
    }

    function room(more) {
      if (size + more <= out.length) return;
      const larger = new Uint8Array(Math.max(out.length * 2, size + more));
      larger.set(out);
      out = larger;
    }

    function stored() {
      held = numHeld = 0;
      const length = bytes[at] | (bytes[at + 1] << 8);
      room(length);
      out.set(bytes.subarray(at + 4, at + 4 + length), size);
      at += 4 + length;
      size += length;
    }

    function fixed() {
      const lengths = Array.from({length: 288}, (_, i) => (i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8));
      return [codes(lengths), codes(Array(30).fill(5))];
    }

    function dynamic() {
      const numLiteral = bits(5) + 257, numDistance = bits(5) + 1, numCode = bits(4) + 4;
      const own = Array(19).fill(0);
      for (let i = 0; i < numCode; i += 1) own[ORDER[i]] = bits(3);
      const code = codes(own), lengths = [];
      while (lengths.length < numLiteral + numDistance) {
        const found = symbol(code);
        if (found < 16) lengths.push(found);
        else {
          const value = found === 16 ? lengths[lengths.length - 1] : 0;
          const times = found === 16 ? 3 + bits(2) : found === 17 ? 3 + bits(3) : 11 + bits(7);
          for (let i = 0; i < times; i += 1) lengths.push(value);
        }
      }
      return [codes(lengths.slice(0, numLiteral)), codes(lengths.slice(numLiteral))];
    }

    function coded([literals, distances]) {
      for (;;) {
        const found = symbol(literals);
        if (found === 256) return;
        if (found < 256) {
          room(1);
          out[size++] = found;
          continue;
        }
        const [base, extra] = LENGTH[found - 257];
        const length = base + bits(extra);
        const [far, more] = DISTANCE[symbol(distances)];
        const from = size - far - bits(more);
        room(length);
        for (let i = 0; i < length; i += 1) out[size + i] = out[from + i]; // byte by byte: both may overlap
        size += length;
      }
    }

    for (let isLast = 0; !isLast;) {
      isLast = bits(1);
      const kind = bits(2);
      if (kind === 0) stored();
      else coded(kind === 1 ? fixed() : dynamic());
    }
    return out.subarray(0, size);
  };
})();
