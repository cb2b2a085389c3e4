// What the page does in the browser by itself: which conversation this tab shows, scrolling with the answer, copying,
// keeping opened sources open. Everything else happens on the server.
window.ragstone = (() => {
  const KEY = 'ragstone.conversation';
  const NEAR_END_PX = 60;
  let fallback = null; // where the browser forbids storage

  const newId = () =>
    Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');

  const read = () => {
    try {
      return sessionStorage.getItem(KEY);
    } catch {
      return fallback;
    }
  };

  const write = (id) => {
    fallback = id;
    try {
      sessionStorage.setItem(KEY, id);
    } catch {
      // The conversation then lasts until the page is reloaded.
    }
    return id;
  };

  // Per tab, and the same after a reload.
  const conversation = () => [read() ?? write(newId())];
  const newConversation = (current) => [current, write(newId())];

  const toggleDocuments = () => {
    const isOpen = document.body.classList.toggle('documents-open');
    document.getElementById('documents-toggle')?.setAttribute('aria-expanded', String(isOpen));
    return [];
  };

  // Follow the answer while the reader is at its end; leave the page alone once they have scrolled up.
  let follows = true;
  const watchScrolling = (transcript) => {
    let height = 0;
    transcript.addEventListener('scroll', () => {
      // Growth of the content moves the end away, which is no choice of the reader's.
      if (transcript.scrollHeight !== height) return;
      follows = transcript.clientHeight + transcript.scrollTop >= transcript.scrollHeight - NEAR_END_PX;
    }, { passive: true });
    // Whoever asks wants to see the answer.
    const ask = (event) => {
      const isEnter = event.type === 'keydown' && event.key === 'Enter' && event.target.closest('#question');
      const isClick = event.type === 'click' && event.target.closest?.('#send, #retry, .example');
      if (isEnter || isClick) follows = true;
    };
    document.addEventListener('keydown', ask, true);
    document.addEventListener('click', ask, true);
    return () => {
      height = transcript.scrollHeight;
      if (follows && transcript.querySelector('.question')) transcript.scrollTop = height;
    };
  };

  // A repaint drops the `open` of a source, as the server does not know of it; the order of sources never changes.
  const opened = new Set();
  const sources = () => [...document.querySelectorAll('#transcript details.source')];
  document.addEventListener('click', (event) => {
    const source = event.target.closest?.('details.source > summary')?.parentElement;
    if (!source) return;
    const index = sources().indexOf(source);
    if (source.open) opened.delete(index);
    else opened.add(index);
    requestAnimationFrame(() => source.scrollIntoView({ block: 'nearest' }));
  });
  const reopen = () => {
    const all = sources();
    if (!all.length) opened.clear();
    for (const index of opened) if (all[index] && !all[index].open) all[index].open = true;
  };

  const copy = async (button) => {
    const text = button.closest('.answer')?.querySelector('.text')?.innerText ?? '';
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
    const label = button.textContent;
    button.textContent = 'Copied';
    setTimeout(() => { button.textContent = label; }, 1500);
  };
  document.addEventListener('click', (event) => {
    const button = event.target.closest?.('[data-copy]');
    if (button) copy(button);
  });

  const start = () => {
    const transcript = document.getElementById('transcript');
    if (!transcript) return void setTimeout(start, 50);
    const follow = watchScrolling(transcript);
    new MutationObserver(() => {
      reopen();
      follow();
    })
      .observe(transcript, { childList: true, subtree: true, characterData: true });
    document.getElementById('documents-toggle')?.setAttribute('aria-expanded', 'false');
  };
  start();

  return { conversation, newConversation, toggleDocuments };
})();
