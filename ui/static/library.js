// The documents' tab: the table, and adding files with progress.
(() => {
  const { on, byId, kept, call, query, toast, isFocusLost, keepFocus, replaceContent, attempt, inOrder, ask, ready, after } = ragstone;
  const JOB_EVERY_MS = 500;
  const CANCELLED = 'it was cancelled';
  let collection = '';
  let maxUploadBytes = Infinity;

  const load = () => call('GET', `documents?${query({ collection, query: byId('document-search').value })}`);
  const list = inOrder(load, (found) => {
    replaceContent(byId('collections'), found.collections);
    replaceContent(byId('document-list'), found.documents);
    const chosen = byId('collections').querySelector('[aria-pressed=true]');
    byId('drop-target').textContent = collection ? chosen?.querySelector('span').textContent : 'My documents';
    document.querySelector('[data-act=delete-collection]').hidden = chosen?.dataset.deletable !== 'true';
    welcome();
  });
  const refresh = () => attempt(list);
  // What is said at the first visit depends on which documents there are.
  const greet = inOrder(() => call('GET', 'welcome'), (html) => {
    welcomeHtml = html;
    if (byId('welcome-more')) byId('welcome-more').innerHTML = html;
  });
  const welcome = async () => {
    try { await greet(); } catch { /* the notice says what is wrong with the server */ }
  };
  let welcomeHtml = '';
  // Gradio makes the welcome anew for each new conversation.
  const watchWelcome = () => new MutationObserver(() => {
    const more = byId('welcome-more');
    if (more && !more.firstChild && welcomeHtml) more.innerHTML = welcomeHtml;
  }).observe(byId('transcript'), { childList: true, subtree: true });
  const show = (name) => {
    if (name !== collection) forgetSeen();
    collection = name;
    return refresh();
  };
  on('choose-collection', (button) => show(button.dataset.collection));
  on('new-collection', async () => {
    const check = (name) => call('POST', 'collections', { name });
    const name = await ask({ title: 'New collection', text: 'A collection can be searched by itself.', field: 'Name', ok: 'Make it', check });
    if (name !== null) show(name.trim());
  });
  on('delete-collection', async () => {
    const name = collection;
    const sure = await ask({ title: 'Delete this collection?', text: 'All its documents go with it.', ok: 'Delete', isDanger: true });
    if (sure === null) return;
    await attempt(async () => {
      await call('DELETE', `collections?${query({ name })}`);
      await show('');
      keepFocus(() => byId('collections').querySelector('[aria-pressed=true]'));
    });
  });

  const rowOf = (element) => element.closest('[data-document]').dataset;
  on('delete-document', async (button) => {
    const { document: id, title } = rowOf(button);
    if (await ask({ title: 'Delete this document?', text: title, ok: 'Delete', isDanger: true }) === null) return;
    await attempt(() => call('DELETE', `documents/${encodeURIComponent(id)}`));
    refresh();
  });
  const beingRead = new Set();
  on('reingest-document', (button) => attempt(async () => {
    const { document: id, title } = rowOf(button);
    if (beingRead.has(id)) return;
    beingRead.add(id);
    button.setAttribute('aria-disabled', 'true'); // `disabled` would take the focus away
    try {
      const reply = await call('POST', `documents/${encodeURIComponent(id)}/reingest`);
      if (reply.job_id) await watchJob(reply.job_id, () => {});
      if (reply.status === 'failed') toast(`“${title}” could not be read: ${reply.reason}`, { isError: true });
      else toast(`Read “${title}” again`);
    } finally {
      beingRead.delete(id);
      button.removeAttribute('aria-disabled');
      refresh();
    }
  }));
  on('download-document', (button) => ragstone.save(`documents/${encodeURIComponent(rowOf(button).document)}/original`));

  // ── adding files ──
  const offerForAll = () => {
    document.querySelector('[data-act=cancel-uploads]').hidden = byId('uploads').querySelectorAll('.pending').length < 2;
    document.querySelector('[data-act=dismiss-uploads]').hidden = !byId('uploads').querySelector('li:not(.pending)');
  };
  const forget = (results) => {
    for (const item of byId('uploads').querySelectorAll(results)) item.remove();
    offerForAll();
  };
  on('dismiss-uploads', () => { forget('li:not(.pending)'); keepFocus(() => byId('document-search')); });
  // Results belong to where the files went; what ended while another view was shown has yet to be seen.
  const isShown = () => document.body.dataset.view === 'documents' && document.visibilityState === 'visible';
  const see = () => { for (const item of byId('uploads').querySelectorAll('li:not(.pending)')) item.classList.add('seen'); };
  const forgetSeen = () => forget('.seen');
  const line = (name) => {
    const item = document.createElement('li');
    item.className = 'pending';
    const label = Object.assign(document.createElement('b'), { textContent: name, dir: 'auto' });
    const said = Object.assign(document.createElement('span'), { textContent: 'waiting' });
    const bar = document.createElement('progress');
    bar.max = 1;
    bar.value = 0;
    bar.setAttribute('aria-label', `Progress of ${name}`);
    const cancel = Object.assign(document.createElement('button'), { type: 'button', className: 'pill', textContent: 'Cancel' });
    cancel.setAttribute('aria-label', `Cancel ${name}`);
    item.append(label, said, cancel, bar);
    byId('uploads').append(item);
    const report = {
      isCancelled: false,
      whenCancelled: null, // how to break off what is under way
      progress: (text, share) => { if (!report.isCancelled) { said.textContent = text; bar.value = share; } },
      end: (kind, text) => {
        const hadFocus = document.activeElement === cancel || (cancel.disabled && isFocusLost());
        item.className = kind;
        said.textContent = text;
        bar.remove();
        cancel.remove();
        if (isShown()) see();
        offerForAll();
        if (hadFocus && isShown()) keepFocus(() => byId('documents').querySelector('#uploads .pending button:not(:disabled), [data-act=dismiss-uploads]'));
      },
    };
    cancel.addEventListener('click', () => {
      report.progress('being cancelled', bar.value);
      report.isCancelled = cancel.disabled = true;
      report.whenCancelled?.();
    });
    return report;
  };
  const isPrivate = () => byId('private').querySelector('input');
  const size = (bytes) => (bytes >= 1e6 ? `${(bytes / 1e6).toFixed(0)} MB` : `${Math.ceil(bytes / 1e3)} KB`);
  const transfer = (file, report, { into, keepPrivate }) => new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const form = new FormData();
    // Fields go first, so that the server knows them when the file comes.
    if (into) form.append('collection', into);
    if (keepPrivate) form.append('private', 'true');
    form.append('files', file, file.name);
    request.open('POST', 'page/upload');
    request.setRequestHeader('X-Ragstone-Page', '1');
    request.upload.onprogress = (event) => report.progress('being sent', 0.5 * (event.loaded / Math.max(event.total, 1)));
    request.onerror = () => reject(new Error('the connection broke off'));
    request.onabort = () => reject(new Error(CANCELLED));
    report.whenCancelled = () => request.abort();
    request.onload = () => {
      let reply = {};
      try { reply = JSON.parse(request.responseText); } catch { /* no reply of ours */ }
      if (request.status === 401) document.dispatchEvent(new CustomEvent('ragstone:login'));
      if (request.status < 300) resolve(reply);
      else reject(new Error(reply.error ?? `the server refused it (${request.status})`));
    };
    request.send(form);
  });
  const watchJob = async (id, progress) => {
    for (;;) {
      try {
        const job = await call('GET', `jobs/${encodeURIComponent(id)}`);
        if (job.status !== 'queued' && job.status !== 'running') return job.files ?? [];
        progress(job.files?.[0]);
      } catch (error) {
        if (error.status !== 0) throw error; // without a connection: the server goes on, and the notice says so
      }
      await new Promise((resolve) => { setTimeout(resolve, JOB_EVERY_MS); });
    }
  };
  const counted = (number, word) => `${number} ${word}${number === 1 ? '' : 's'}`;
  const result = (file) => {
    if (!file) return ['failed', 'Not added: no result was given'];
    if (file.status === 'cancelled') return ['failed', `Not added: ${CANCELLED}`];
    if (file.status === 'failed') return ['failed', `Not added: ${file.reason || 'no reason given'}`];
    const said = { updated: 'Updated', unchanged: 'Already there' }[file.status] ?? 'Added';
    const counts = [counted(file.num_chunks ?? 0, 'passage'), ...(file.num_pages > 1 ? [`${file.num_pages} pages`] : [])].join(', ');
    return ['added', `${said}: ${counts}${file.reason ? `; ${file.reason}` : ''}`];
  };
  const add = async (file, report, target) => {
    if (report.isCancelled) {
      report.end('failed', `Not added: ${CANCELLED}`);
      return;
    }
    if (file.size > maxUploadBytes) {
      report.end('failed', `Not added: it has ${size(file.size)}, and at most ${size(maxUploadBytes)} are taken`);
      return;
    }
    try {
      const reply = await transfer(file, report, target);
      const cancel = () => call('DELETE', `jobs/${encodeURIComponent(reply.job_id)}`).catch(() => {}); // it then goes in
      report.whenCancelled = cancel;
      if (report.isCancelled) cancel();
      report.progress('being read', 0.5);
      const files = reply.job_id
        ? await watchJob(reply.job_id, (seen) => report.progress('being read', 0.5 + 0.5 * (seen?.progress ?? 0)))
        : reply.results;
      report.end(...result(files?.[0]));
    } catch (error) {
      report.end('failed', `Not added: ${error.message}`);
    }
  };
  let adding = Promise.resolve();
  let cameFrom = null; // the view in which files were chosen or dropped
  const goToDocuments = () => {
    if (document.body.dataset.view === 'documents') return;
    cameFrom = document.body.dataset.view;
    ragstone.view('documents');
  };
  const backToChat = () => {
    ragstone.view('chat');
    keepFocus(() => byId('question').querySelector('textarea'));
  };
  const offerWayBack = () => {
    const isLeft = document.body.dataset.view !== 'documents' || byId('uploads').querySelector('.pending');
    if (isLeft || cameFrom !== 'chat') return;
    cameFrom = null;
    const number = byId('uploads').querySelectorAll('.added').length;
    if (!number) return;
    toast(`${counted(number, 'file')} can be asked about now`, { label: 'Back to the chat', action: backToChat });
  };
  const addAll = (files) => {
    if (!files.length) return;
    goToDocuments();
    forget('li:not(.pending)');
    // Those of now, whatever is chosen while earlier files are being sent.
    const target = { into: collection, keepPrivate: isPrivate().checked };
    for (const [file, report] of [...files].map((file) => [file, line(file.name)])) {
      adding = adding.then(() => add(file, report, target)).then(refresh).then(offerWayBack);
    }
    offerForAll();
  };
  on('cancel-uploads', () => {
    for (const button of byId('uploads').querySelectorAll('.pending button:not(:disabled)')) button.click();
  });
  on('choose-files', () => byId('files').click());

  const watchDrops = () => {
    const drop = byId('drop');
    byId('files').addEventListener('change', (event) => { addAll(event.target.files); event.target.value = ''; });
    let depth = 0;
    const holdsFiles = (event) => event.dataTransfer?.types.includes('Files');
    const mark = () => document.body.classList.toggle('dropping', depth > 0);
    document.addEventListener('dragenter', (event) => { if (holdsFiles(event)) { depth += 1; goToDocuments(); mark(); } });
    document.addEventListener('dragleave', (event) => { if (holdsFiles(event)) { depth = Math.max(0, depth - 1); mark(); } });
    document.addEventListener('dragover', (event) => { if (holdsFiles(event)) event.preventDefault(); });
    document.addEventListener('drop', (event) => {
      if (!holdsFiles(event)) return;
      event.preventDefault();
      depth = 0;
      mark();
      addAll(event.dataTransfer.files);
    });
    drop.addEventListener('click', (event) => { if (!event.target.closest('button, input, label')) byId('files').click(); });
    isPrivate().checked = kept.read('private') !== null;
    isPrivate().addEventListener('change', () => kept.write('private', isPrivate().checked ? 'true' : null));
  };

  ready(() => {
    byId('document-search').addEventListener('input', after(250, refresh));
    document.addEventListener('ragstone:view', (event) => {
      if (event.detail !== 'documents') return forgetSeen();
      see();
      return refresh();
    });
    document.addEventListener('visibilitychange', () => { if (isShown()) see(); });
    document.addEventListener('ragstone:ready', welcome);
    document.addEventListener('ragstone:ready', () => { if (document.body.dataset.view === 'documents') refresh(); });
    if (document.body.dataset.view === 'documents') refresh();
    call('GET', 'limits').then((limits) => { maxUploadBytes = limits.max_upload_bytes; }, () => {});
    watchDrops();
    watchWelcome();
  });
})();
