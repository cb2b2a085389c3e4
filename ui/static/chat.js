// The chat in the browser: which conversation this tab shows, scrolling with the answer, what can be done with a turn.
(() => {
  const { on, byId, send, keptInTab, call, toast, attempt, ask, ready } = ragstone;
  const NEAR_END_PX = 60;

  const newId = () =>
    Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');
  let current = keptInTab.read('conversation') ?? newId();
  const setCurrent = (id) => {
    current = id;
    keptInTab.write('conversation', id);
  };
  setCurrent(current);

  ragstone.conversation = () => [current];
  ragstone.asking = (question) => {
    follows = true;
    return [question, current, ragstone.options()];
  };
  ragstone.stopping = () => [current];
  ragstone.show = (id) => {
    if (ragstone.view) ragstone.view('chat');
    const leaving = current;
    setCurrent(id);
    opened.clear();
    follows = true;
    send('opening', { leaving, session_id: id });
    document.dispatchEvent(new CustomEvent('ragstone:conversation'));
  };
  ragstone.startNew = () => {
    ragstone.show(newId());
    byId('question')?.querySelector('textarea')?.focus();
  };
  on('new', () => ragstone.startNew());

  const command = (kind, more = {}) => {
    follows = true;
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
      if (event.key === 'Escape') cancel.click();
      if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
    });
    form.addEventListener('submit', async (event) => {
      event.preventDefault();
      const index = Number(question.dataset.turn);
      const later = document.querySelectorAll('#transcript .question').length - 1 - index;
      if (!area.value.trim()) return;
      if (later > 0) {
        const turns = later === 1 ? 'the turn' : `the ${later} turns`;
        const sure = await ask({ title: 'Ask this again?', text: `This drops ${turns} after it.`, ok: 'Ask again', isDanger: true });
        if (sure === null) return;
      }
      const text = area.value;
      done();
      command('edit', { index, text });
    });
    bubble.hidden = button.hidden = true;
    question.append(form);
    area.focus();
  });

  // ── answers ──
  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Only secure pages have a clipboard; the old way works everywhere else.
      const area = Object.assign(document.createElement('textarea'), { value: text });
      document.body.append(area);
      area.select();
      document.execCommand('copy');
      area.remove();
    }
    toast('Copied');
  };
  on('copy', (button) => {
    const turn = button.closest('[data-turn]').dataset.turn;
    const text = document.querySelector(`.answer[data-turn="${turn}"] .text`);
    const clone = text.cloneNode(true);
    for (const mark of clone.querySelectorAll('.cite, .unsupported')) mark.textContent = `[${mark.textContent}]`;
    copy(Object.assign(document.createElement('div'), { innerHTML: clone.innerHTML }).innerText.trim());
  });

  on('cite', (link) => {
    const card = byId(link.getAttribute('href').slice(1));
    if (!card) return;
    card.open = true;
    opened.add(card.id);
    card.scrollIntoView({ block: 'center', behavior: 'smooth' });
    card.querySelector('summary').focus({ preventScroll: true });
    card.classList.remove('flash');
    requestAnimationFrame(() => card.classList.add('flash'));
  });
  on('explain', (button) => {
    for (const other of document.querySelectorAll('.unsupported.shown')) if (other !== button) other.classList.remove('shown');
    button.classList.toggle('shown');
  });

  on('rate', async (button) => {
    const tools = button.closest('.tools');
    const index = Number(tools.dataset.turn);
    const wasGiven = button.getAttribute('aria-pressed') === 'true';
    const rating = wasGiven ? '' : button.dataset.rating;
    const mark = (value) => {
      for (const other of tools.querySelectorAll('[data-rating]')) other.setAttribute('aria-pressed', String(other.dataset.rating === value));
    };
    const rate = (comment) => call('PUT', 'feedback', { session_id: current, index, rating, comment });
    const isKept = await attempt(async () => { await rate(''); return true; });
    if (!isKept) return;
    mark(rating);
    if (!rating) return;
    toast('Thank you. It is kept with the answer.', {
      label: 'Add a comment',
      action: async () => {
        const comment = await ask({
          title: rating === 'up' ? 'What was good?' : 'What was wrong?', field: 'Comment', value: button.dataset.comment, isLong: true, ok: 'Save', check: rate,
        });
        if (comment !== null) button.dataset.comment = comment;
      },
    });
  });

  // ── scrolling: follow the answer while the reader is at its end; leave the page alone once they have scrolled up ──
  let follows = true;
  const watchScrolling = (transcript) => {
    let height = 0;
    transcript.addEventListener('scroll', () => {
      // Growth of the content moves the end away, which is no choice of the reader's.
      if (transcript.scrollHeight !== height) return;
      follows = transcript.clientHeight + transcript.scrollTop >= transcript.scrollHeight - NEAR_END_PX;
    }, { passive: true });
    return () => {
      height = transcript.scrollHeight;
      if (follows && transcript.querySelector('.question')) transcript.scrollTop = height;
    };
  };

  // A repaint drops the `open` of a card, as the server does not know of it.
  const opened = new Set();
  document.addEventListener('click', (event) => {
    const card = event.target.closest?.('#transcript details > summary')?.parentElement;
    if (!card?.id) return;
    follows = false;
    if (card.open) opened.delete(card.id);
    else opened.add(card.id);
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
    let isBusy = false;
    new MutationObserver(() => {
      reopen();
      follow();
      const busyNow = Boolean(transcript.querySelector('[aria-busy=true]'));
      if (busyNow !== isBusy) document.dispatchEvent(new CustomEvent('ragstone:turn'));
      isBusy = busyNow;
      if (transcript.querySelector('[data-code=login]')) document.dispatchEvent(new CustomEvent('ragstone:login'));
    }).observe(transcript, { childList: true, subtree: true, characterData: true });
    keepDraft();
  });
})();
