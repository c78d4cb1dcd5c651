// The spans of a timeline, unpacked: typed columns, rows one after another, time ascending in each.

function unpack(text) {
  const bytes = atob(text);
  const numbers = new Float64Array(bytes.length);
  let count = 0;
  let value = 0;
  let scale = 1; // not a shift: numbers have up to 53 bits
  for (let i = 0; i < bytes.length; i++) {
    const byte = bytes.charCodeAt(i);
    value += (byte & 127) * scale;
    if (byte & 128) {
      scale *= 128;
    } else {
      numbers[count++] = value;
      value = 0;
      scale = 1;
    }
  }
  return numbers.subarray(0, count);
}

class Spans {
  constructor(data) {
    const gap = unpack(data.gap);
    const length = unpack(data.length);
    this.count = gap.length;
    this.data = data;
    this.label = Int32Array.from(unpack(data.label));
    this.start = new Float64Array(this.count);
    this.end = new Float64Array(this.count);
    this.first = new Int32Array(data.counts.length + 1); // of every row
    this.rowOf = new Int32Array(this.count);
    for (let row = 0, i = 0; row < data.counts.length; row++) {
      for (let t = 0, stop = i + data.counts[row]; i < stop; i++) {
        this.start[i] = t + gap[i];
        t = this.end[i] = this.start[i] + length[i];
        this.rowOf[i] = row;
      }
      this.first[row + 1] = i;
    }
    this.duration = this.end.reduce((most, each) => Math.max(most, each), 1);
    this.notes(data);
    this.sums(data.kinds.length);
  }

  notes(data) {
    this.wait = new Float64Array(this.count);
    this.nbytes = new Map();
    const wait = unpack(data.wait);
    const nbytes = unpack(data.nbytes);
    let at = 0;
    unpack(data.noted).forEach((step, i) => {
      at += step;
      this.wait[at] = wait[i];
      if (nbytes[i]) this.nbytes.set(at, nbytes[i]);
    });
    this.onPath = new Uint8Array(this.count);
    this.path = data.paths.flat();
    for (const i of this.path) this.onPath[i] = 1;
    this.pathBefore = countBefore(this.onPath);
  }

  // Nanoseconds of every kind before each span: what a pixel holds is then a difference.
  sums(numKinds) {
    const waiting = this.data.kinds.indexOf("waiting");
    this.before = Array.from({ length: numKinds }, () => new Float64Array(this.count + 1));
    for (let i = 0; i < this.count; i++) {
      for (const sum of this.before) sum[i + 1] = sum[i];
      const kind = this.kindOf(i);
      this.before[kind][i + 1] += this.end[i] - this.start[i] - this.wait[i];
      this.before[waiting][i + 1] += this.wait[i];
    }
  }

  nameOf(i) { return this.data.labels[this.label[i]][0]; }
  shortOf(i) { return this.data.labels[this.label[i]][2] ?? this.nameOf(i); }
  kindOf(i) { return this.data.labels[this.label[i]][1]; }
  lineOf(row) { return this.data.lines[this.data.rows[row]]; }

  // The first span of a row, from `low` on, whose column is beyond a time.
  beyond(column, time, low, high) {
    let step = 1;
    let top = low;
    while (top < high && column[top] <= time) { // gallop: the answer is mostly near
      low = top + 1;
      top += step;
      step *= 2;
    }
    top = Math.min(top, high);
    while (low < top) {
      const middle = (low + top) >> 1;
      if (column[middle] <= time) low = middle + 1; else top = middle;
    }
    return low;
  }

  // The kind that takes most of some neighbours, and how many nanoseconds all of them take.
  mostly(from, to) {
    let most = 0;
    let all = 0;
    let kind = this.kindOf(from);
    this.before.forEach((sum, each) => {
      const time = sum[to] - sum[from];
      all += time;
      if (time > most) { most = time; kind = each; }
    });
    return [kind, all];
  }

  // The span of a row at a time, or the nearest one within some nanoseconds.
  at(row, time, near) {
    const [low, high] = [this.first[row], this.first[row + 1]];
    const i = this.beyond(this.end, time, low, high);
    const distance = (j) => (j < low || j >= high ? Infinity
      : Math.max(this.start[j] - time, time - this.end[j], 0));
    const best = distance(i - 1) < distance(i) ? i - 1 : i;
    return distance(best) <= near ? best : -1;
  }

  // Which spans have a name that contains the words, in order of time.
  find(words) {
    const wanted = words.trim().toLowerCase();
    if (!wanted) return null;
    const hits = this.data.labels.map(([name]) => name.toLowerCase().includes(wanted));
    const flags = new Uint8Array(this.count);
    const found = [];
    for (let i = 0; i < this.count; i++) {
      if (hits[this.label[i]]) { flags[i] = 1; found.push(i); }
    }
    found.sort((a, b) => this.start[a] - this.start[b]);
    return { flags, before: countBefore(flags), found };
  }
}

function countBefore(flags) {
  const before = new Int32Array(flags.length + 1);
  for (let i = 0; i < flags.length; i++) before[i + 1] = before[i] + flags[i];
  return before;
}

// Numbers as people read them, to four digits, in the units of the tables.
function scaled(value, units) {
  const [factor, unit] = units.find(([least]) => Math.abs(value) >= least) || units[units.length - 1];
  return `${Number((value / factor).toPrecision(4))} ${unit}`;
}
const showTime = (ns) => (ns ? scaled(ns, [[1e9, "s"], [1e6, "ms"], [1e3, "us"], [1, "ns"]]) : "0 s");
const showSize = (n) => scaled(n, [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]]);
const showRate = (r) => scaled(r, [[1e12, "TB/s"], [1e9, "GB/s"], [1e6, "MB/s"], [1e3, "kB/s"], [1, "B/s"]]);
