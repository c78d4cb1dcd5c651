// What a user does to a timeline: mouse, touch, keys, buttons and search; and what it says back.

const SHORTEST = 20; // nanoseconds that fill the width at most

class Control {
  constructor(box, data) {
    const find = (name) => box.querySelector(`[data-part="${name}"]`);
    this.parts = Object.fromEntries(
      ["stage", "space", "canvas", "tip", "detail", "search", "found", "group", "quiet", "path"]
        .map((name) => [name, find(name)]));
    this.spans = new Spans(data);
    this.drawing = new Drawing(this.parts.canvas, this.spans);
    this.pointers = new Map();
    this.arrange();
    this.listen(box);
    this.say(this.summary());
  }

  summary() {
    const { spans } = this;
    const left = this.spans.data.leftOut;
    return `${spans.count.toLocaleString("en")} spans over ${showTime(spans.duration)}`
      + (left ? `; ${left.toLocaleString("en")} shorter ones are left out` : "") + ".";
  }

  listen(box) {
    const { stage, search, group, quiet, path } = this.parts;
    new ResizeObserver(() => this.resize()).observe(stage);
    stage.addEventListener("scroll", () => this.later());
    stage.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    stage.addEventListener("keydown", (event) => this.key(event));
    for (const kind of ["down", "move", "up", "cancel", "leave"]) {
      stage.addEventListener(`pointer${kind}`, (event) => this[kind](event));
    }
    stage.addEventListener("dblclick", (event) => this.zoomToSpan(this.under(event)));
    search.addEventListener("input", () => this.search());
    search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.step(event.shiftKey ? -1 : 1);
    });
    group.addEventListener("change", () => this.arrange());
    quiet.addEventListener("change", () => this.arrange());
    path.addEventListener("change", () => {
      this.drawing.pathOnly = path.checked;
      this.later();
    });
    for (const button of box.querySelectorAll("button[data-do]")) {
      button.addEventListener("click", () => this.act(button.dataset.do));
    }
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.drawing.readColours();
      this.later();
    });
  }

  arrange() {
    const { group, quiet } = this.parts;
    this.drawing.arrange(group.value, quiet.checked);
    this.resize();
  }

  resize() {
    const { stage, space } = this.parts;
    const most = Math.max(260, Math.round(window.innerHeight * 0.72));
    const height = Math.min(this.drawing.height, most);
    stage.style.height = `${height}px`;
    space.style.height = `${this.drawing.height - height}px`;
    this.drawing.resize(stage.clientWidth, height);
    this.draw(); // at once: a canvas of a new size is empty, and would be shown so for a frame
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  draw() {
    this.drawing.top = this.parts.stage.scrollTop;
    this.drawing.draw();
    if (!this.parts.stage.dataset.drawn) performance.mark("timeline");
    this.parts.stage.dataset.drawn = "yes";
  }

  // Zoom by a factor around a moment, and keep inside what there is.
  zoom(factor, around) {
    const { from, to } = this.drawing;
    const middle = around ?? (from + to) / 2;
    this.show(middle - (middle - from) * factor, middle + (to - middle) * factor);
  }

  pan(share) {
    const { from, to } = this.drawing;
    const by = (to - from) * share;
    this.show(from + by, to + by);
  }

  show(from, to) {
    const all = this.spans.duration;
    const length = Math.min(Math.max(to - from, SHORTEST), all);
    const begin = Math.min(Math.max((from + to - length) / 2, 0), all - length);
    this.drawing.from = begin;
    this.drawing.to = begin + length;
    this.hideTip();
    this.later();
  }

  zoomToSpan(i) {
    if (i < 0) return;
    const length = this.spans.end[i] - this.spans.start[i];
    this.show(this.spans.start[i] - length, this.spans.end[i] + length);
  }

  act(what) {
    const deeds = {
      in: () => this.zoom(0.5),
      out: () => this.zoom(2),
      left: () => this.pan(-0.3),
      right: () => this.pan(0.3),
      fit: () => this.show(0, this.spans.duration),
      next: () => this.step(1),
      previous: () => this.step(-1),
    };
    deeds[what]();
  }

  wheel(event) {
    const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!event.ctrlKey && !event.metaKey && !sideways) return; // the page scrolls
    event.preventDefault();
    const moved = event.deltaX || event.deltaY;
    if (sideways && !event.ctrlKey) this.pan(moved / this.drawing.width);
    else this.zoom(1.0015 ** event.deltaY, this.drawing.time(this.place(event).x));
  }

  place(event) {
    const box = this.parts.canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  under(event) {
    const { x, y } = this.place(event);
    return this.drawing.spanAt(x, y);
  }

  down(event) {
    if (event.button) return;
    this.pointers.set(event.pointerId, this.place(event));
    this.moved = false;
  }

  move(event) {
    const before = this.pointers.get(event.pointerId);
    const now = this.place(event);
    if (!before) {
      this.hover(event);
      return;
    }
    if (!this.moved && Math.abs(now.x - before.x) < 4) return;
    if (!this.moved) this.parts.stage.setPointerCapture(event.pointerId);
    this.moved = true;
    const others = [...this.pointers].filter(([id]) => id !== event.pointerId);
    if (others.length) this.pinch(before, now, others[0][1]);
    else this.pan((before.x - now.x) / (this.drawing.width - this.drawing.left));
    this.pointers.set(event.pointerId, now);
  }

  pinch(before, now, other) {
    const was = Math.max(Math.abs(before.x - other.x), 8);
    const is = Math.max(Math.abs(now.x - other.x), 8);
    this.zoom(was / is, this.drawing.time((now.x + other.x) / 2));
  }

  up(event) {
    const pressed = this.pointers.delete(event.pointerId);
    if (pressed && !this.moved) {
      this.select(this.under(event), false);
      this.hover(event);
    }
  }

  cancel(event) { this.pointers.delete(event.pointerId); }
  leave() { this.hideTip(); }

  hover(event) {
    const i = this.under(event);
    const { tip, canvas } = this.parts;
    if (i < 0) { this.hideTip(); return; }
    tip.replaceChildren(...this.facts(i).map((text, number) => {
      const line = document.createElement(number ? "div" : "strong");
      line.textContent = text;
      return line;
    }));
    tip.hidden = false;
    const { x, y } = this.place(event);
    const box = canvas.getBoundingClientRect();
    tip.style.left = `${Math.max(0, Math.min(x + 12, box.width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${canvas.offsetTop - this.parts.stage.scrollTop + y + 16}px`;
  }

  hideTip() { this.parts.tip.hidden = true; }

  facts(i) {
    const { spans } = this;
    const { kinds, details } = spans.data;
    const [group, title] = spans.lineOf(spans.rowOf[i]);
    const length = spans.end[i] - spans.start[i];
    const nbytes = spans.nbytes.get(i);
    const moving = length - spans.wait[i];
    const facts = [spans.nameOf(i), `${kinds[spans.kindOf(i)]}, ${group}, ${title}`,
      `${showTime(length)}, from ${showTime(spans.start[i])} to ${showTime(spans.end[i])}`];
    if (spans.wait[i]) facts.push(`waits ${showTime(spans.wait[i])} for other ranks, then moves data ${showTime(moving)}`);
    if (nbytes) facts.push(showSize(nbytes) + (moving > 0 ? `, ${showRate(nbytes / moving * 1e9)}` : ""));
    if (details[i]) facts.push(details[i]);
    if (spans.onPath[i]) facts.push("on the critical path");
    return facts;
  }

  say(text) { this.parts.detail.textContent = text; }

  select(i, bring = true) {
    this.drawing.selected = i;
    this.say(i < 0 ? this.summary() : this.facts(i).join(". "));
    if (i >= 0 && bring) this.bring(i);
    this.later();
  }

  // Let the view follow to a span, without a change of scale unless it is far too small.
  bring(i) {
    const { spans, drawing } = this;
    if (spans.start[i] < drawing.from || spans.end[i] > drawing.to) {
      const half = Math.max((drawing.to - drawing.from) / 2, spans.end[i] - spans.start[i]);
      const middle = (spans.start[i] + spans.end[i]) / 2;
      this.show(middle - half, middle + half);
    }
    const place = drawing.placeOf(spans.rowOf[i]);
    const { stage } = this.parts;
    if (place && (place.y < stage.scrollTop + 60 || place.y > stage.scrollTop + drawing.seen - 30)) {
      stage.scrollTop = place.y - drawing.seen / 2;
    }
  }

  search() {
    const { search, found } = this.parts;
    this.drawing.hits = this.spans.find(search.value);
    const hits = this.drawing.hits && this.drawing.hits.found;
    const total = hits ? hits.reduce((sum, i) => sum + this.spans.end[i] - this.spans.start[i], 0) : 0;
    found.textContent = hits ? `${hits.length.toLocaleString("en")} found, ${showTime(total)} in all` : "";
    this.later();
  }

  // To the next or the previous span that was searched for, or else of the critical path.
  step(by) {
    const list = this.drawing.hits ? this.drawing.hits.found : this.spans.path;
    if (!list.length) return;
    const at = list.indexOf(this.drawing.selected);
    const next = at < 0 ? (by > 0 ? 0 : list.length - 1) : (at + by + list.length) % list.length;
    this.reveal(list[next]);
    this.select(list[next]);
  }

  // A span on a line that is not shown brings its line along.
  reveal(i) {
    const [group, , quiet] = this.spans.lineOf(this.spans.rowOf[i]);
    const { parts } = this;
    const hidden = (parts.group.value && parts.group.value !== group) || (quiet && !parts.quiet.checked);
    if (!hidden) return;
    if (quiet) parts.quiet.checked = true;
    if (parts.group.value) parts.group.value = group;
    this.arrange();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const deeds = {
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), w: () => this.zoom(0.5),
      "-": () => this.zoom(2), s: () => this.zoom(2),
      a: () => this.pan(-0.2), d: () => this.pan(0.2),
      0: () => this.act("fit"), Home: () => this.act("fit"),
      n: () => this.step(1), p: () => this.step(-1),
      Enter: () => this.zoomToSpan(this.drawing.selected),
      Escape: () => this.select(-1),
      "/": () => this.parts.search.focus(),
      ArrowLeft: () => this.along(-1), ArrowRight: () => this.along(1),
      ArrowUp: () => this.across(-1), ArrowDown: () => this.across(1),
    };
    if (!deeds[event.key]) return;
    event.preventDefault();
    deeds[event.key]();
  }

  // The neighbour on the same row; the first span in view if none is selected.
  along(by) {
    const { spans, drawing } = this;
    if (drawing.selected < 0) { this.across(0); return; }
    const row = spans.rowOf[drawing.selected];
    const next = drawing.selected + by;
    if (next >= spans.first[row] && next < spans.first[row + 1]) this.select(next);
  }

  // The span at the same time on the row above or below.
  across(by) {
    const { spans, drawing } = this;
    if (!drawing.places.length) return;
    const here = drawing.places.findIndex((each) => each.row === spans.rowOf[drawing.selected]);
    const place = drawing.places[Math.min(Math.max(here + by, 0), drawing.places.length - 1)];
    const time = drawing.selected < 0 ? (drawing.from + drawing.to) / 2
      : (spans.start[drawing.selected] + spans.end[drawing.selected]) / 2;
    this.select(spans.at(place.row, time, Infinity));
  }
}

function begin() {
  for (const box of document.querySelectorAll("[data-timeline]")) {
    const data = JSON.parse(document.getElementById(box.dataset.timeline).textContent);
    box.control = new Control(box, data);
  }
}

// After the first paint: the page is read before its timeline is drawn.
requestAnimationFrame(() => setTimeout(begin, 0));
