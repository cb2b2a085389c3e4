// The status page: what /metrics says, drawn as lines. It is asked now and then from the first visit on, so that there is
// something to see when the status is opened.
(() => {
  const { byId, call, inOrder, ready } = ragstone;
  const EVERY_MS = 2000;
  const UNSEEN_EVERY_MS = 10000;
  const SOON_MS = 700;
  const SPAN_MS = 180000; // kept and drawn; less at the beginning, so that lines are seen to be lines
  const LEAST_SPAN_MS = 20000;
  const NUM_NEEDED = 2; // a rate is between two readings
  const SVG = 'http://www.w3.org/2000/svg';
  const [WIDTH, HEIGHT] = [300, 90];

  const rate = (name) => (now, before) => (before ? Math.max(0, now[name] - before[name]) / ((now.at - before.at) / 1000) : null);
  const share = (hits, of) => (now, before) => {
    // Of what came since the last reading; at the first, of all time.
    const [part, whole] = [now[hits] - (before?.[hits] ?? 0), now[of] - (before?.[of] ?? 0)];
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
    { title: 'Whole request', name: 'whole_s' },
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
    return { node, svg, value, scale };
  };

  const duration = (ms) => (ms < 90000 ? `${Math.round(ms / 1000)} seconds` : `${(ms / 60000).toFixed(0)} minutes`);
  const drawLine = ({ value, text, top, shown }) => {
    const values = samples.map((now, index) => value(now, samples[index - 1] ?? null));
    const known = values.filter((item) => item !== null && Number.isFinite(item));
    const most = top ?? Math.max(1, ...known);
    const end = samples.at(-1).at;
    const span = Math.max(LEAST_SPAN_MS, end - samples[0].at);
    let last = null;
    const points = [];
    values.forEach((item, index) => {
      if (item === null) { if (last === null) return; } else last = item;
      points.push([WIDTH * (1 - (end - samples[index].at) / span), HEIGHT - 4 - (HEIGHT - 8) * Math.min(1, last / most)]);
    });
    shown.svg.replaceChildren();
    if (points.length) {
      const path = points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(' ');
      shown.svg.append(element('polygon', { class: 'area', points: `${points[0][0]},${HEIGHT} ${path} ${points.at(-1)[0]},${HEIGHT}` }), element('polyline', { class: 'line', points: path }));
    }
    const isCollecting = samples.length < NUM_NEEDED;
    shown.node.classList.toggle('collecting', isCollecting);
    shown.value.textContent = last === null ? '–' : text(last);
    shown.svg.setAttribute('aria-label', last === null ? 'nothing yet' : text(last));
    if (isCollecting) shown.scale.textContent = 'collecting …';
    else shown.scale.textContent = last === null ? 'nothing yet since this page was opened' : `0 – ${text(most)}, the last ${duration(span)}`;
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
    shown.node.classList.remove('collecting');
    shown.value.textContent = total ? `${total} request${total === 1 ? '' : 's'}` : '–';
    shown.svg.setAttribute('aria-label', shown.value.textContent);
    const [first, last] = [cut[0]?.[0], cut.at(-1)?.[0]];
    shown.scale.textContent = cut.length ? `up to ${seconds(first)} – ${last === null ? 'longer' : `up to ${seconds(last)}`}` : 'no request yet';
  };

  const isShown = () => document.body.dataset.view === 'status';
  const draw = () => {
    if (!samples.length || !isShown()) return;
    PLOTS.forEach(drawLine);
    HISTOGRAMS.forEach(drawBars);
  };
  let isRefused = false;
  const look = async () => {
    const sinceLast = performance.now() - (samples.at(-1)?.at ?? -Infinity);
    if (document.hidden || (!isShown() && (isRefused || sinceLast < UNSEEN_EVERY_MS))) return;
    try {
      await measure();
    } catch (error) {
      // Of a server that is gone, the notice tells.
      isRefused = error.status === 403 || error.status === 401;
      if (error.status !== 403) return;
      byId('plots').hidden = true;
      byId('status-model').textContent = 'What the engine is doing is shown to API keys that may read metrics; yours may not. Whoever runs this server can give you one.';
    }
  };
  const measure = inOrder(() => call('GET', 'metrics'), (now) => {
    isRefused = false;
    byId('plots').hidden = false;
    samples.push({ ...now, at: performance.now() });
    while (samples[0].at < samples.at(-1).at - SPAN_MS) samples.shift();
    byId('status-model').textContent = `${now.model ? `${now.model}: what` : 'What'} the engine is doing, every two seconds while this page is open.`;
    draw();
    if (samples.length < NUM_NEEDED) setTimeout(look, SOON_MS);
  });
  ready(() => {
    byId('status-view').tabIndex = 0; // it scrolls, and nothing in it takes the focus
    for (const plot of [...PLOTS, ...HISTOGRAMS]) {
      plot.shown = figure(plot.title);
      plot.shown.node.classList.add('collecting');
      plot.shown.scale.textContent = 'collecting …';
    }
    document.addEventListener('ragstone:view', () => { draw(); look(); });
    document.addEventListener('ragstone:ready', look);
    setInterval(look, EVERY_MS);
  });
})();
