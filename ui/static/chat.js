// The chat in the browser: which conversation this tab shows, scrolling with the answer, what can be done with a turn.
(() => {
  const { on, byId, send, keptInTab, call, query, toast, keepFocus, attempt, ask, onEscape, ready } = ragstone;
  const NEAR_END_PX = 60;
  const FOCUS_AFTER_MS = 150; // Gradio takes buttons away a moment later
  const NEAR_START_PX = 200;

  const newId = () =>
    Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');
  let current = keptInTab.read('conversation') ?? newId();
  const setCurrent = (id) => {
    current = id;
    keptInTab.write('conversation', id);
  };
  setCurrent(current);

  ragstone.conversation = () => [current];
  // Every press is sent: what goes out twice before its answer has begun, or while this tab's own answer comes, is none.
  const TWICE_MS = 1000;
  let [sent, sentAt] = ['', 0];
  const isTwice = (what) => {
    if (what === sent && performance.now() - sentAt < TWICE_MS) return true;
    [sent, sentAt] = [what, performance.now()];
    return false;
  };
  ragstone.asking = (question) => {
    if ((isAsker && busyTurn() !== null) || isTwice(question)) return ['', current, ragstone.options()];
    follows = isAsker = isAsking = true;
    return [question, current, ragstone.options()];
  };
  ragstone.stopping = () => [current];
  ragstone.show = (id) => {
    if (ragstone.view) ragstone.view('chat');
    const leaving = current;
    isAsker = isAsking = false;
    setCurrent(id);
    opened.clear();
    follows = true;
    send('opening', { leaving, session_id: id });
    document.dispatchEvent(new CustomEvent('ragstone:conversation'));
  };
  // Gradio paints what comes when it comes: one that was opened earlier may have come last.
  ragstone.opened = (id) => { if (id && id !== current) send('opening', { leaving: id, session_id: current }); };
  const questionBox = () => byId('question')?.querySelector('textarea');
  ragstone.startNew = () => {
    ragstone.show(newId());
    questionBox()?.focus();
  };
  on('new', () => ragstone.startNew());

  // Whether the answer that is being made is this tab's own. Another one is watched. `isAsking`: its own has yet to come.
  let isAsker = false;
  let isAsking = false;
  const busyTurn = () => [...byId('transcript').querySelectorAll('[aria-busy=true]')].at(-1)?.dataset.key ?? null;
  const command = (kind, more = {}) => {
    if (kind !== 'watch' && isTwice(JSON.stringify([kind, more]))) return;
    follows = true;
    isAsker = isAsking = kind !== 'watch';
    send('command', { kind, session_id: current, options: ragstone.options(), text: '', index: -1, ...more });
  };
  on('example', (button) => command('ask', { text: button.textContent }));
  on('retry', () => command('retry'));
  on('continue', () => command('continue'));

  // ── a question, edited ──
  on('edit', (button) => {
    const question = button.closest('.question');
    const bubble = question.querySelector('.bubble');
    if (question.querySelector('.editing')) return;
    const form = document.createElement('form');
    form.className = 'editing';
    const area = Object.assign(document.createElement('textarea'), { value: bubble.textContent, rows: 3, dir: 'auto' });
    area.setAttribute('aria-label', 'Edited question');
    const cancel = Object.assign(document.createElement('button'), { type: 'button', className: 'pill', textContent: 'Cancel' });
    const submit = Object.assign(document.createElement('button'), { type: 'submit', className: 'pill primary', textContent: 'Ask' });
    const buttons = Object.assign(document.createElement('div'), { className: 'buttons' });
    buttons.append(cancel, submit);
    form.append(area, buttons);
    const done = () => { form.remove(); bubble.hidden = button.hidden = false; };
    cancel.addEventListener('click', () => { done(); button.focus(); });
    form.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') { event.stopPropagation(); cancel.click(); }
      if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
    });
    form.addEventListener('submit', async (event) => {
      event.preventDefault();
      const index = Number(question.dataset.turn);
      const later = Number(document.querySelector('#live .question').dataset.turn) - index;
      if (!area.value.trim()) return;
      if (busyTurn() !== null) {
        toast('Stop the answer that is being made first.');
        return;
      }
      if (later > 0) {
        const turns = later === 1 ? 'the turn' : `the ${later} turns`;
        const sure = await ask({ title: 'Ask this again?', text: `This drops ${turns} after it.`, ok: 'Ask again', isDanger: true });
        if (sure === null) return;
      }
      const text = area.value;
      done();
      command('edit', { index, text });
      questionBox()?.focus();
    });
    follows = false; // not the end is looked at now
    bubble.hidden = button.hidden = true;
    question.append(form);
    area.focus({ preventScroll: true });
    form.scrollIntoView({ block: 'center' });
  });

  // ── answers ──
  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Only secure pages have a clipboard; the old way works everywhere else.
      const focused = document.activeElement;
      const area = Object.assign(document.createElement('textarea'), { value: text });
      document.body.append(area);
      area.select();
      const isCopied = document.execCommand('copy');
      area.remove();
      focused?.focus({ preventScroll: true });
      if (!isCopied) return toast('The browser did not let the page copy it. Mark the text and copy it by hand.', { isError: true });
    }
    return toast('Copied');
  };
  on('copy', (button) => copy(button.dataset.text));
  on('copy-code', (button) => copy(button.parentElement.querySelector('code').textContent));

  // Escape closes a card, and leads back to the mark in the answer that opened it.
  let cited = null;
  onEscape((event) => {
    const card = event.target.closest?.('.source[open]');
    if (!card || !byId('viewer').hidden) return false;
    card.open = false;
    opened.delete(card.id);
    const isItsMark = cited?.isConnected && cited.getAttribute('href') === `#${card.id}`;
    (isItsMark ? cited : card.querySelector('summary')).focus();
    return true;
  });
  on('cite', (link) => {
    const card = byId(link.getAttribute('href').slice(1));
    if (!card) return;
    card.open = true;
    opened.add(card.id);
    cited = link;
    card.scrollIntoView({ block: 'center', behavior: 'smooth' });
    card.querySelector('summary').focus({ preventScroll: true });
    card.classList.remove('flash');
    requestAnimationFrame(() => card.classList.add('flash'));
  });
  on('explain', (button) => {
    for (const other of document.querySelectorAll('.unsupported.shown')) if (other !== button) other.classList.remove('shown');
    button.classList.toggle('shown');
  });

  const rate = async (button, session_id) => {
    const tools = button.closest('.tools');
    const index = Number(tools.dataset.turn);
    const wasGiven = button.getAttribute('aria-pressed') === 'true';
    const rating = wasGiven ? '' : button.dataset.rating;
    const isKept = await attempt(async () => {
      await call('PUT', 'feedback', { session_id, index, rating, comment: '' });
      return true;
    });
    if (!isKept) return;
    for (const other of tools.querySelectorAll('[data-rating]')) other.setAttribute('aria-pressed', String(other.dataset.rating === rating));
    showComment(tools, '').hidden = !rating;
    if (rating) toast('Thank you. It is kept with the answer.');
  };
  // One after the other: a second press means what the first has made of it.
  let rated = Promise.resolve();
  on('rate', (button) => {
    const session_id = current;
    rated = rated.then(() => rate(button, session_id));
  });
  const showComment = (tools, comment) => {
    const button = tools.querySelector('[data-act=comment]');
    button.dataset.comment = comment;
    button.title = comment ? 'Change your comment' : 'Add a comment';
    button.setAttribute('aria-label', button.title);
    return button;
  };
  on('comment', async (button) => {
    const tools = button.closest('.tools');
    const [index, session_id] = [Number(tools.dataset.turn), current];
    const { rating } = tools.querySelector('[aria-pressed=true]').dataset;
    const comment = await ask({
      title: rating === 'up' ? 'What was good?' : 'What was wrong?', field: 'Comment', value: button.dataset.comment, isLong: true, ok: 'Save',
      check: (text) => call('PUT', 'feedback', { session_id, index, rating, comment: text }),
    });
    if (comment !== null) showComment(tools, comment);
  });

  // ── earlier turns, fetched when somebody scrolls up to where they begin ──
  on('older', (button) => attempt(async () => {
    const hadFocus = document.activeElement === button; // which one that is disabled loses
    button.disabled = true;
    try {
      const html = await call('GET', `conversation/earlier?${query({ session_id: current, before: button.dataset.before })}`);
      if (!button.isConnected) return; // another conversation is shown by now
      const transcript = byId('transcript');
      const fromEnd = transcript.scrollHeight - transcript.scrollTop;
      follows = false;
      const holder = button.parentElement;
      holder.innerHTML = html;
      transcript.scrollTop = transcript.scrollHeight - fromEnd;
      if (hadFocus) holder.querySelector('button, summary')?.focus({ preventScroll: true });
    } finally {
      button.disabled = false;
    }
  }));

  // ── scrolling: follow the answer while the reader is at its end; leave the page alone once they have scrolled up ──
  let follows = true;
  const watchScrolling = (transcript) => {
    let [height, room] = [0, 0];
    const newest = byId('newest');
    byId('composer').append(newest);
    const isAtEnd = () => transcript.clientHeight + transcript.scrollTop >= transcript.scrollHeight - NEAR_END_PX;
    // The welcome has no newest answer, and on a small screen the button would lie over a question to try.
    const offer = () => { newest.hidden = isAtEnd() || !transcript.querySelector('.question'); };
    transcript.addEventListener('scroll', () => {
      offer();
      // Growth of the content, or of the box below it, moves the end away, which is no choice of the reader's.
      if (transcript.scrollHeight !== height || transcript.clientHeight !== room) return;
      follows = isAtEnd();
      if (!follows && transcript.scrollTop < NEAR_START_PX) transcript.querySelector('[data-act=older]')?.click();
    }, { passive: true });
    return () => {
      height = transcript.scrollHeight;
      room = transcript.clientHeight;
      if (follows && transcript.querySelector('.question')) transcript.scrollTop = height;
      offer();
    };
  };

  on('newest', () => {
    follows = true;
    byId('transcript').scrollTo({ top: byId('transcript').scrollHeight, behavior: 'smooth' });
    byId('newest').hidden = true;
    keepFocus(questionBox);
  });

  // A repaint drops the `open` of a card, as the server does not know of it.
  const opened = new Set();
  document.addEventListener('click', (event) => {
    const card = event.target.closest?.('#transcript details > summary')?.parentElement;
    if (!card) return;
    follows = false;
    if (card.open) opened.delete(card.id);
    else if (card.id) opened.add(card.id);
    requestAnimationFrame(() => card.scrollIntoView({ block: 'nearest' }));
  });
  const reopen = () => {
    for (const id of opened) {
      const card = byId(id);
      if (card && !card.open) card.open = true;
    }
  };

  // ── the text being typed survives a reload ──
  const keepDraft = () => {
    const area = byId('question')?.querySelector('textarea');
    if (!area) return void setTimeout(keepDraft, 100);
    const draft = keptInTab.read('draft');
    if (draft && !area.value) {
      area.value = draft;
      area.dispatchEvent(new Event('input', { bubbles: true }));
    }
    // Gradio empties the box without an event of its own.
    setInterval(() => {
      const box = byId('question')?.querySelector('textarea');
      if (box) keptInTab.write('draft', box.value || null);
    }, 700);
  };

  ready(() => {
    const transcript = byId('transcript');
    const follow = watchScrolling(transcript);
    let busy = null;
    new MutationObserver(() => {
      reopen();
      follow();
      const busyNow = busyTurn();
      if (busyNow !== busy) {
        document.dispatchEvent(new CustomEvent('ragstone:turn'));
        isAsker = busyNow !== null && isAsking;
        isAsking = false;
        sent = '';
        if (busyNow !== null && !isAsker) command('watch');
        // The buttons to send, stop, retry and continue come and go with the answer.
        keepFocus(questionBox, FOCUS_AFTER_MS);
      }
      busy = busyNow;
      if (transcript.querySelector('[data-code=login]')) document.dispatchEvent(new CustomEvent('ragstone:login'));
    }).observe(transcript, { childList: true, subtree: true, characterData: true });
    // A question that is refused goes back into its box, which grows over the reason.
    new ResizeObserver(follow).observe(transcript);
    keepDraft();
  });

  // What the page shows may be of before the server went, or nothing, as it could not be asked.
  document.addEventListener('ragstone:back', () => {
    isAsker = isAsking = false;
    send('opening', { leaving: current, session_id: current });
  });
})();
