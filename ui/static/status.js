// The status page: what /metrics says, drawn as lines while the page is open.
(() => {
  const { byId, call, ready } = ragstone;
  const EVERY_MS = 2000;
  const NUM_KEPT = 90;
  const SVG = 'http://www.w3.org/2000/svg';
  const [WIDTH, HEIGHT] = [300, 90];

  const rate = (name) => (now, before) => (before ? Math.max(0, now[name] - before[name]) / ((now.at - before.at) / 1000) : null);
  const share = (hits, of) => (now, before) => {
    // Of what came since the page was opened; before anything comes, of all time.
    const [part, whole] = before ? [now[hits] - before[hits], now[of] - before[of]] : [0, 0];
    return whole > 0 ? (100 * part) / whole : null;
  };
  const PLOTS = [
    { title: 'Tokens a second', value: rate('num_output_tokens'), text: (value) => value.toFixed(0) },
    { title: 'Requests being answered', value: (now) => now.num_running, text: (value) => value.toFixed(0) },
    { title: 'Requests waiting', value: (now) => now.num_waiting, text: (value) => value.toFixed(0) },
    { title: 'KV cache in use', value: (now) => 100 * now.kv_usage, text: (value) => `${value.toFixed(1)} %`, top: 100 },
    { title: 'Prefix cache hits', value: share('num_prefix_hits', 'num_prefix_queries'), text: (value) => `${value.toFixed(0)} %`, top: 100 },
    { title: 'Drafts accepted', value: share('num_accepted_tokens', 'num_draft_tokens'), text: (value) => `${value.toFixed(0)} %`, top: 100 },
  ];
  const HISTOGRAMS = [
    { title: 'Time to first token', name: 'first_token_s' },
    { title: 'Time of a whole request', name: 'whole_s' },
  ];
  const samples = [];

  const element = (name, attributes) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };
  const figure = (title) => {
    const node = document.createElement('figure');
    const caption = document.createElement('figcaption');
    const value = document.createElement('strong');
    caption.append(Object.assign(document.createElement('span'), { textContent: title }), value);
    const svg = element('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': title });
    const scale = Object.assign(document.createElement('div'), { className: 'scale' });
    node.append(caption, svg, scale);
    byId('plots').append(node);
    return { svg, value, scale };
  };

  const drawLine = ({ value, text, top, shown }) => {
    const values = samples.map((now, index) => value(now, samples[index - 1] ?? null));
    const known = values.filter((item) => item !== null && Number.isFinite(item));
    const most = top ?? Math.max(1, ...known);
    const step = WIDTH / (NUM_KEPT - 1);
    const start = NUM_KEPT - values.length;
    let last = null;
    const points = [];
    values.forEach((item, index) => {
      if (item === null) { if (last === null) return; } else last = item;
      points.push([(start + index) * step, HEIGHT - 4 - (HEIGHT - 8) * Math.min(1, last / most)]);
    });
    shown.svg.replaceChildren();
    if (points.length) {
      const path = points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(' ');
      shown.svg.append(element('polygon', { class: 'area', points: `${points[0][0]},${HEIGHT} ${path} ${points.at(-1)[0]},${HEIGHT}` }), element('polyline', { class: 'line', points: path }));
    }
    shown.value.textContent = last === null ? '–' : text(last);
    shown.svg.setAttribute('aria-label', `${shown.value.textContent}`);
    shown.scale.textContent = `0 – ${text(most)}, three minutes`;
  };
  const seconds = (value) => (value >= 1 ? `${value} s` : `${Math.round(value * 1000)} ms`);
  const drawBars = ({ name, shown }) => {
    const buckets = samples.at(-1)[name] ?? [];
    const used = buckets.map(([, count], index) => (count ? index : -1)).filter((index) => index >= 0);
    const cut = used.length ? buckets.slice(Math.max(0, used[0] - 1), used.at(-1) + 2) : [];
    const total = cut.reduce((sum, [, count]) => sum + count, 0);
    const most = Math.max(1, ...cut.map(([, count]) => count));
    const width = WIDTH / Math.max(cut.length, 1);
    shown.svg.replaceChildren(...cut.map(([limit, count], index) => {
      const height = (HEIGHT - 4) * (count / most);
      const bar = element('rect', { class: 'bar', x: index * width + 1, y: HEIGHT - height, width: Math.max(width - 2, 1), height });
      const label = element('title', {});
      label.textContent = `${limit === null ? 'longer' : `up to ${seconds(limit)}`}: ${count}`;
      bar.append(label);
      return bar;
    }));
    shown.value.textContent = total ? `${total} requests` : '–';
    shown.svg.setAttribute('aria-label', shown.value.textContent);
    const [first, last] = [cut[0]?.[0], cut.at(-1)?.[0]];
    shown.scale.textContent = cut.length ? `up to ${seconds(first)} – ${last === null ? 'longer' : `up to ${seconds(last)}`}` : 'no request yet';
  };

  const look = async () => {
    if (document.body.dataset.view !== 'status' || document.hidden) return;
    try {
      const now = await call('GET', 'metrics');
      samples.push({ ...now, at: performance.now() });
      if (samples.length > NUM_KEPT) samples.shift();
      byId('status-model').textContent = `${now.model ? `${now.model}: what` : 'What'} the engine is doing, every two seconds while this page is open.`;
      PLOTS.forEach(drawLine);
      HISTOGRAMS.forEach(drawBars);
    } catch (error) {
      // Of a server that is gone, the notice tells.
      if (error.status === 403) byId('status-model').textContent = error.message;
    }
  };
  ready(() => {
    byId('status-view').tabIndex = 0; // it scrolls, and nothing in it takes the focus
    for (const plot of [...PLOTS, ...HISTOGRAMS]) plot.shown = figure(plot.title);
    document.addEventListener('ragstone:view', look);
    setInterval(look, EVERY_MS);
  });
})();
