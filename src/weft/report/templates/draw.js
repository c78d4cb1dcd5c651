// Drawing: only what can be seen, and never more than one block of a row for two pixels.

const ROW = 17;
const LINE_GAP = 5;
const HEADING = 22;
const AXIS = 24;
const MARKS = 18;
const BLOCK = 2; // pixels that share one rectangle when spans are narrower

class Drawing {
  constructor(canvas, spans) {
    this.canvas = canvas;
    this.spans = spans;
    this.pen = canvas.getContext("2d");
    this.from = 0;
    this.to = spans.duration;
    this.top = 0; // pixels scrolled
    this.selected = -1;
    this.hits = null;
    this.pathOnly = false;
    this.readColours();
  }

  readColours() {
    const style = getComputedStyle(this.canvas);
    const get = (name) => style.getPropertyValue(`--${name}`).trim();
    this.colours = this.spans.data.kinds.map((kind) => get(`kind-${kind}`));
    this.ink = get("ink");
    this.faint = get("faint");
    this.grid = get("grid");
    this.paper = get("paper");
    this.band = get("band");
    this.accent = get("accent");
    this.onColour = get("on-colour");
    this.striped = this.stripes(get("kind-waiting"));
    this.font = `11px ${style.fontFamily}`;
  }

  // Waiting looks as in the bars of the page: striped, so that it is told apart without colours.
  stripes(colour) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const pen = tile.getContext("2d");
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 8, 8);
    pen.globalAlpha = 0.35;
    pen.strokeStyle = this.paper;
    pen.lineWidth = 2;
    for (const shift of [-8, 0, 8]) {
      pen.moveTo(shift - 1, 9);
      pen.lineTo(shift + 9, -1);
    }
    pen.stroke();
    return this.pen.createPattern(tile, "repeat");
  }

  // Which rows stand where; `group` is "" for all of them.
  arrange(group, quiet) {
    const { rows, lines } = this.spans.data;
    this.places = [];
    this.headings = [];
    this.above = this.spans.data.marks.some(([, name]) => !name) ? AXIS + MARKS : AXIS;
    let y = this.above;
    let heading = null;
    let line = -1;
    rows.forEach((each, row) => {
      const [name, title, isQuiet] = lines[each];
      if ((group && name !== group) || (isQuiet && !quiet)) return;
      if (name !== heading) {
        this.headings.push({ name, y, end: y });
        heading = name;
        y += HEADING;
      }
      if (each !== line && line >= 0) y += LINE_GAP;
      this.places.push({ row, y, title: each === line ? "" : title });
      line = each;
      y += ROW;
      this.headings[this.headings.length - 1].end = y;
    });
    this.height = y + LINE_GAP;
  }

  resize(width, height) {
    const ratio = window.devicePixelRatio || 1;
    this.width = width;
    this.seen = height;
    this.left = Math.round(Math.max(66, Math.min(150, width * 0.17)));
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  x(time) { return this.left + (time - this.from) * this.scale; }
  time(x) { return this.from + (x - this.left) / this.scale; }

  draw() {
    const pen = this.pen;
    this.scale = (this.width - this.left) / (this.to - this.from);
    pen.font = this.font;
    pen.textBaseline = "middle";
    pen.globalAlpha = 1;
    pen.fillStyle = this.paper;
    pen.fillRect(0, 0, this.width, this.seen);
    const ticks = this.ticks();
    this.drawGrid(ticks);
    for (const place of this.places) {
      const y = place.y - this.top;
      if (y > -ROW && y < this.seen) this.drawRow(place.row, y, ROW - 2);
    }
    this.drawPaths();
    this.drawSelected();
    this.drawLabels();
    this.drawAxis(ticks);
  }

  ticks() {
    const wanted = Math.max(2, (this.width - this.left) / 90);
    const raw = (this.to - this.from) / wanted;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((n) => n * power).find((each) => each >= raw);
    const found = [];
    for (let t = Math.ceil(this.from / step) * step; t <= this.to; t += step) found.push(t);
    return found;
  }

  drawGrid(ticks) {
    this.pen.fillStyle = this.grid;
    for (const t of ticks) this.pen.fillRect(Math.round(this.x(t)), AXIS, 1, this.seen);
    for (const [, group, start, end] of this.spans.data.marks) {
      const heading = this.headings.find((each) => each.name === group);
      if (group && !heading) continue;
      const top = heading ? heading.y - this.top : AXIS;
      const high = heading ? heading.end - heading.y : this.seen;
      for (const t of [start, end]) this.pen.fillRect(Math.round(this.x(t)), top, 2, high);
    }
  }

  drawRow(row, y, height) {
    const { spans } = this;
    const high = spans.first[row + 1];
    let i = spans.beyond(spans.end, this.from, spans.first[row], high);
    while (i < high && spans.start[i] < this.to) {
      const x = this.x(spans.start[i]);
      const wide = (spans.end[i] - spans.start[i]) * this.scale;
      if (wide >= BLOCK) {
        this.drawSpan(i, x, y, wide, height);
        i += 1;
        continue;
      }
      const pixel = Math.floor(x);
      const until = this.time(pixel + BLOCK);
      let next = spans.beyond(spans.start, until, i + 1, high);
      const last = next - 1; // only the last of them may be wide: it begins in this block
      if (last > i && (spans.end[last] - spans.start[last]) * this.scale >= BLOCK) next = last;
      this.drawBlock(i, next, pixel, y, height);
      i = next;
    }
  }

  // How much of some neighbours is to be seen: what was searched for, or what is on the path.
  strength(from, to) {
    if (this.hits && this.hits.before[to] === this.hits.before[from]) return 0.16;
    if (this.pathOnly && this.spans.pathBefore[to] === this.spans.pathBefore[from]) return 0.16;
    return 1;
  }

  drawBlock(from, to, x, y, height) {
    const [kind, busy] = this.spans.mostly(from, to);
    const share = Math.min(1, (busy * this.scale) / BLOCK);
    this.pen.globalAlpha = this.strength(from, to) * (0.35 + 0.65 * share);
    this.pen.fillStyle = this.colours[kind];
    this.pen.fillRect(x, y, BLOCK, height);
    this.pen.globalAlpha = 1;
  }

  drawSpan(i, x, y, wide, height) {
    const pen = this.pen;
    const left = Math.max(x, this.left - 2);
    const right = Math.min(x + wide, this.width + 2);
    const kinds = this.spans.data.kinds;
    pen.globalAlpha = this.strength(i, i + 1);
    const kind = this.spans.kindOf(i);
    pen.fillStyle = kinds[kind] === "waiting" ? this.striped : this.colours[kind];
    pen.fillRect(left, y, Math.max(right - left - (wide > 4 ? 1 : 0), 1), height);
    const waits = this.spans.wait[i] * this.scale;
    if (waits >= 1 && x + waits > left) {
      pen.fillStyle = this.striped;
      pen.fillRect(left, y, Math.min(x + waits, right) - left, height);
    }
    if (right - left > 34) this.write(this.spans.shortOf(i), left + 4, y + height / 2, right - left - 8, this.onColour);
    pen.globalAlpha = 1;
  }

  write(text, x, y, room, colour, keepEnd = 0) {
    const letters = Math.floor(room / 6.1); // as wide as the letters of the font mostly are
    const head = text.slice(0, Math.max(letters - 1 - keepEnd, 1));
    const shown = text.length <= letters ? text : `${head}…${keepEnd ? text.slice(-keepEnd) : ""}`;
    this.pen.fillStyle = colour;
    this.pen.fillText(shown, x, y, Math.max(room, 1));
  }

  placeOf(row) {
    if (!this.byRow || this.byRow.of !== this.places) {
      this.byRow = { of: this.places, map: new Map(this.places.map((each) => [each.row, each])) };
    }
    return this.byRow.map.get(row);
  }

  // A line under what decided the end, and lines from each of them to the next.
  drawPaths() {
    this.pen.strokeStyle = this.ink;
    this.pen.fillStyle = this.ink;
    this.pen.lineWidth = 1;
    for (const path of this.spans.data.paths) this.drawPath(path);
  }

  drawPath(path) {
    const { spans, pen } = this;
    let before = null;
    for (const i of path) {
      const place = this.placeOf(spans.rowOf[i]);
      if (spans.start[i] > this.to) break;
      if (!place) { before = null; continue; }
      const y = place.y - this.top + ROW - 2;
      if (spans.end[i] >= this.from) {
        const x = this.x(spans.start[i]);
        pen.fillRect(x, y - 2, Math.max((spans.end[i] - spans.start[i]) * this.scale, 1), 2);
        if (before && before.y !== y) {
          pen.beginPath();
          pen.moveTo(Math.min(before.x, x), before.y);
          pen.lineTo(x, y);
          pen.stroke();
        }
      }
      before = { x: this.x(spans.end[i]), y }; // of what encloses the next one its start counts
    }
  }

  drawSelected() {
    const place = this.selected >= 0 && this.placeOf(this.spans.rowOf[this.selected]);
    if (!place) return;
    const x = this.x(this.spans.start[this.selected]);
    const wide = Math.max((this.spans.end[this.selected] - this.spans.start[this.selected]) * this.scale, 3);
    this.pen.strokeStyle = this.accent;
    this.pen.lineWidth = 2;
    this.pen.strokeRect(x - 1, place.y - this.top - 1, wide + 1, ROW);
  }

  drawLabels() {
    const pen = this.pen;
    pen.fillStyle = this.paper;
    pen.fillRect(0, 0, this.left, this.seen);
    for (const { row, y, title } of this.places) {
      if (title) this.write(title, 10, y - this.top + ROW / 2 - 1, this.left - 14, this.faint, 5);
    }
    for (const { name, y } of this.headings) {
      pen.fillStyle = this.band;
      pen.fillRect(0, y - this.top + 2, this.width, HEADING - 5);
      this.drawMarks(name, y - this.top + 2, HEADING - 5);
      pen.fillStyle = this.band;
      pen.fillRect(0, y - this.top + 2, this.left, HEADING - 5);
      pen.font = `bold ${this.font}`;
      this.write(name, 4, y - this.top + HEADING / 2, this.left - 6, this.ink);
      pen.font = this.font;
    }
  }

  // Steps and the like: those of a rank stand in its heading, those of all under the axis.
  drawMarks(group, y, height) {
    for (const [title, of, start, end] of this.spans.data.marks) {
      if (of !== group || end < this.from || start > this.to) continue;
      const left = Math.max(this.x(start), this.left);
      const room = Math.min(this.x(end), this.width) - left;
      this.pen.fillStyle = this.grid;
      this.pen.fillRect(left + 1, y, Math.max(room - 2, 1), height);
      if (room > 24) this.write(title, left + 5, y + height / 2, room - 8, this.faint);
    }
  }

  // Time above everything.
  drawAxis(ticks) {
    const pen = this.pen;
    pen.fillStyle = this.paper;
    pen.fillRect(0, 0, this.width, this.above);
    pen.textAlign = "center";
    for (const t of ticks) {
      const x = this.x(t);
      if (x > this.left + 16 && x < this.width - 20) this.write(showTime(t), x, AXIS / 2, 200, this.faint);
    }
    pen.textAlign = "left";
    if (this.above > AXIS) this.drawMarks("", AXIS + 1, MARKS - 4);
    pen.fillStyle = this.grid;
    pen.fillRect(0, this.above - 1, this.width, 1);
  }

  rowAt(y) {
    const place = this.places.find((each) => y + this.top >= each.y && y + this.top < each.y + ROW);
    return place ? place.row : -1;
  }

  spanAt(x, y) {
    const row = y < AXIS || x < this.left ? -1 : this.rowAt(y);
    return row < 0 ? -1 : this.spans.at(row, this.time(x), 4 / this.scale);
  }
}
