// What stands around the chat: the list of conversations, the views, the state of the server, logging in.
(() => {
  const { on, byId, call, query, toast, keepFocus, attempt, inOrder, ask, menu, onEscape, ready, after } = ragstone;
  const HEALTH_EVERY_MS = 3000;

  // ── conversations ──
  const itemOf = (id) => byId('conversation-list').querySelector(`li[data-session="${CSS.escape(id)}"]`);
  const titleOf = (id) => itemOf(id)?.dataset.title;
  const markCurrent = () => {
    const [id] = ragstone.conversation();
    for (const item of byId('conversation-list').querySelectorAll('li')) {
      const isCurrent = item.dataset.session === id;
      item.classList.toggle('current', isCurrent);
      item.querySelector('.entry').setAttribute('aria-current', String(isCurrent));
    }
    const title = titleOf(id);
    byId('conversation-title').textContent = title ?? 'New conversation';
    document.title = title ? `${title} · Ragstone` : 'Ragstone';
  };
  let shown = null;
  const load = async () => {
    try {
      return await call('GET', `conversations?${query({ query: byId('conversation-search').value })}`);
    } catch (error) {
      // The notice says what is wrong with the server; what was listed stays.
      return error.status === 401 ? '' : null;
    }
  };
  const refresh = inOrder(load, (html) => {
    const list = byId('conversation-list');
    if (html !== null && html !== shown) {
      const focused = list.contains(document.activeElement) ? document.activeElement : null;
      const [id, act] = [focused?.closest('li')?.dataset.session, focused?.dataset.act];
      list.innerHTML = shown = html;
      if (id) itemOf(id)?.querySelector(`[data-act=${act}]`)?.focus();
    }
    markCurrent();
  });
  ragstone.refreshConversations = refresh;

  const open = (id) => {
    showSidebar(false);
    if (id === ragstone.conversation()[0]) ragstone.view('chat');
    else ragstone.show(id);
  };
  on('open-conversation', (button) => open(button.closest('li').dataset.session));

  const rename = async (id, title) => {
    const check = async (text) => {
      if (!text.trim()) throw new Error('A title cannot be empty.');
      await call('PATCH', `conversation?${query({ session_id: id })}`, { title: text.trim() });
    };
    const given = await ask({ title: 'Rename conversation', field: 'Title', value: title, ok: 'Rename', check });
    if (given !== null) await refresh();
    // The list may have been drawn anew below the dialog, which then cannot give the focus back.
    keepFocus(() => itemOf(id)?.querySelector('[data-act=conversation-menu]'));
  };
  const remove = (id, title) => attempt(async () => {
    await call('DELETE', `conversation?${query({ session_id: id })}`);
    const wasShown = id === ragstone.conversation()[0];
    if (wasShown) ragstone.startNew();
    await refresh();
    const said = toast(`Deleted “${title}”`, {
      label: 'Undo',
      ofPage: true,
      action: () => attempt(async () => {
        await call('POST', `conversation/restore?${query({ session_id: id })}`);
        if (wasShown) ragstone.show(id);
        await refresh();
        keepFocus(() => itemOf(id)?.querySelector('.entry'));
      }),
    });
    keepFocus(() => said.querySelector('button'));
  });
  const save = (id, format) => ragstone.save(`conversation/export?${query({ session_id: id, format })}`);
  on('conversation-menu', (button) => {
    const { session: id, title } = button.closest('li').dataset;
    menu(() => itemOf(id)?.querySelector('[data-act=conversation-menu]'), [
      { label: 'Rename', action: () => rename(id, title) },
      { label: 'Export as Markdown', action: () => save(id, 'markdown') },
      { label: 'Export as JSON', action: () => save(id, 'json') },
      { label: 'Delete', isDanger: true, action: () => remove(id, title) },
    ]);
  });

  // ── the list on a phone ──
  const isSidebarOpen = () => document.body.classList.contains('sidebar-open');
  const showSidebar = (isOpen) => {
    document.body.classList.toggle('sidebar-open', isOpen);
    document.querySelector('[data-act=open-sidebar]').setAttribute('aria-expanded', String(isOpen));
  };
  const toggleSidebar = (isOpen) => {
    showSidebar(isOpen);
    document.querySelector(isOpen ? '[data-act=close-sidebar]' : '[data-act=open-sidebar]').focus();
    return true;
  };
  on('open-sidebar', () => toggleSidebar(true));
  on('close-sidebar', () => toggleSidebar(false));
  document.addEventListener('click', (event) => {
    if (isSidebarOpen() && !event.target.closest('#sidebar, #menu, dialog, [data-act=open-sidebar]')) showSidebar(false);
  });
  onEscape(() => isSidebarOpen() && toggleSidebar(false));

  // ── views ──
  ragstone.view = (name) => {
    document.body.dataset.view = name;
    for (const button of document.querySelectorAll('.views button')) button.setAttribute('aria-pressed', String(button.dataset.view === name));
    document.dispatchEvent(new CustomEvent('ragstone:view', { detail: name }));
    const hash = name === 'chat' ? '' : `#${name}`;
    if (location.hash !== hash) history.replaceState(null, '', hash || location.pathname + location.search);
  };
  on('view', (button) => ragstone.view(button.dataset.view));

  // ── the server ──
  let wasReady = null;
  const health = async () => {
    try {
      return await call('GET', 'health');
    } catch {
      return {
        isLost: true,
        is_ready: false,
        status: '<span class="status bad" role="status"><span class="dot" aria-hidden="true"></span>No connection</span>',
        notice: '<div class="notice bad" role="status"><strong>The page has lost its server. It will connect again by itself.</strong></div>',
      };
    }
  };
  const look = inOrder(health, (seen) => {
    if (seen.isLost) document.body.dataset.connection = 'lost';
    else delete document.body.dataset.connection;
    for (const name of ['status', 'notice']) if (byId(name).innerHTML !== seen[name]) byId(name).innerHTML = seen[name];
    if (seen.is_ready && wasReady === false) document.dispatchEvent(new CustomEvent('ragstone:back'));
    if (seen.is_ready && wasReady !== true) document.dispatchEvent(new CustomEvent('ragstone:ready'));
    wasReady = seen.is_ready;
  });

  // ── logging in ──
  let isAsking = false;
  const login = async () => {
    if (isAsking) return;
    isAsking = true;
    const check = (key) => call('POST', 'login', { key });
    const key = await ask({ title: 'Log in', text: 'This server asks for an API key. Whoever runs it gives you one.', field: 'API key', isSecret: true, ok: 'Log in', check });
    isAsking = false;
    if (key === null) return;
    location.reload();
  };
  document.addEventListener('ragstone:login', () => { byId('key-button').hidden = false; login(); });
  on('login', () => attempt(async () => {
    const { has_key: hasKey } = await call('GET', 'session');
    if (!hasKey) return login();
    if (await ask({ title: 'Log out?', text: 'Your conversations and documents stay on the server.', ok: 'Log out' }) === null) return undefined;
    await call('POST', 'logout');
    // Whoever logs in next starts anew.
    byId('question').querySelector('textarea').value = '';
    for (const name of ['conversation', 'draft']) ragstone.keptInTab.write(name, null);
    ragstone.kept.write('settings', null);
    return location.reload();
  }));
  // A button to log out for who is logged in; none where the server asks for no key.
  const showKeyButton = () => attempt(async () => {
    const { has_key: hasKey } = await call('GET', 'session');
    const button = byId('key-button');
    const label = hasKey ? 'Log out' : 'Log in with a key';
    button.title = label;
    button.setAttribute('aria-label', label);
    if (hasKey) button.hidden = false;
  });

  ready(() => {
    ragstone.view(['documents', 'status'].includes(location.hash.slice(1)) ? location.hash.slice(1) : 'chat');
    byId('conversation-search').addEventListener('input', after(250, refresh));
    document.addEventListener('ragstone:conversation', markCurrent);
    document.addEventListener('ragstone:turn', after(150, refresh));
    document.addEventListener('ragstone:ready', refresh);
    showKeyButton();
    look();
    setInterval(look, HEALTH_EVERY_MS);
  });
})();
